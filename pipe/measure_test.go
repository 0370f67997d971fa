package pipe_test

import (
	"context"
	"fmt"
	"testing"

	"penstock.example/internal/draws"
	"penstock.example/internal/torchtest"
	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// Measuring keeps the least limit that steps do, and says so where it did not keep one.
func TestMeasuringKeepsTheLeastLimit(t *testing.T) {
	for _, m := range []struct {
		name    string
		options models.Options
	}{
		{"mlp", models.Options{}}, {"resnet20", models.Options{Width: 4}}, {"gpt", models.Options{Width: 16, Heads: 2, Context: 5, Depth: 4, Dropout: 0.2}},
		{"vgg11_bn", models.Options{Width: 16, Classes: 5}}, {"densenet121", models.Options{Width: 8, Classes: 5}}, {"unet", models.Options{Convolutions: 2, Width: 4, Depth: 2, Size: 32}},
	} {
		if !draws.Full && (m.name == "vgg11_bn" || m.name == "densenet121") {
			continue // large; mlp and unet have costs of the same shape
		}
		for _, chunks := range draws.Pick([]int{2}, []int{1, 2}) {
			t.Run(fmt.Sprint(m.name, " ", chunks), func(t *testing.T) {
				torchtest.Check(t)
				model, err := models.New(m.name, m.options)
				if err != nil {
					t.Fatal(err)
				}
				defer nn.Free(model)
				device := torch.CPU(0)
				c := torch.NewCtx(torch.Options{Device: device, Seed: 1})
				defer c.Close()
				var b pipe.Batch
				if info, err := models.Describe(m.name); err != nil {
					t.Fatal(err)
				} else if rows := int64(8); info.Kind == models.Text {
					tokens := make([]int64, rows*5)
					for i := range tokens {
						tokens[i] = int64(i % 7)
					}
					b.Input, b.Target = pipe.Rows(torch.From(c, tokens, rows, 5)), pipe.Rows(torch.From(c, tokens, rows, 5))
				} else {
					size := min(info.Input[1], 32)
					b.Input = pipe.Rows(c.Normal_(c.Empty(torch.Float32, rows, info.Input[0], size, size), 0, 1))
					b.Target = pipe.Rows(torch.From(c, make([]int64, rows), rows))
					if m.name == "unet" {
						b.Target = pipe.Rows(c.Zeros(torch.Int64, rows, size, size))
					}
				}
				defer device.SetLimit(0)
				planned := func(limit int64) (beyond, of int64, err error) {
					p, err := pipe.Open(model, pipe.Config{Balance: []int{len(model.Layers())}, Chunks: chunks, Checkpoint: pipe.Optimal, Seed: 1})
					if err != nil {
						t.Fatal(err)
					}
					defer p.Close()
					device.SetLimit(limit)
					_, err = p.PlanFor(context.Background(), b, nn.CrossEntropy())
					beyond, of = p.MeasuredBeyond()
					return beyond, of, err
				}
				low := device.Memory().Live + 1
				beyond, of, err := planned(low)
				if beyond <= low || of != low {
					t.Errorf("under %d bytes measuring is said to have held %d, beyond %d", low, beyond, of)
				}
				least := shortages(t, err).Least()
				if beyond > least {
					t.Errorf("measuring held %d bytes beyond its limit, and a plan needs %d", beyond, least)
				}
				if beyond, of, err := planned(least); err != nil || beyond != 0 || of != 0 {
					t.Errorf("under the least limit, of %d bytes, measuring held %d, beyond %d: %v", least, beyond, of, err)
				}
			})
		}
	}
}
