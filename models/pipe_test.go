package models_test

import (
	"bytes"
	"context"
	"slices"
	"testing"

	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// A training step of one of each family leaves the same gradients and running statistics, bit for
// bit, in a pipe of two stages as in one of one.
func TestStepInAPipe(t *testing.T) {
	const rows, chunks, classes = 6, 2, 5
	loss := models.NewAuxiliaryLoss(nn.CrossEntropy(), 0.3)
	for _, row := range []struct {
		name string
		o    models.Options
		size int64
	}{
		{"resnext50_32x4d", models.Options{}, 32},
		{"resnet1001", models.Options{Width: 4, Depth: 2}, 32},
		{"vgg11", models.Options{Width: 16}, 32},
		{"densenet121", models.Options{Width: 8}, 32},
		{"inception_v3", models.Options{}, 75},
		{"vit_b_32", models.Options{Width: 24, Depth: 2}, 64},
		{"googlenet", models.Options{Aux: true}, 32},
	} {
		t.Run(row.name, func(t *testing.T) {
			if row.name == "resnext50_32x4d" || row.name == "inception_v3" { // TestLayersCutApartComputeTheSameBits has these
				full(t)
			}
			c := torchtest.New(t, torch.Options{})
			row.o.Classes, row.o.Size = classes, int(row.size)
			x := c.Normal_(c.Empty(torch.Float32, rows, 3, row.size, row.size), 0, 1)
			batch := pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(torch.From(c, []int64{0, 1, 2, 3, 4, 0}))}
			step := func(stages int) (float64, [][]byte) {
				s := build(t, row.name, row.o)
				stir(s)
				defer nn.Free(s)
				n := len(s.Layers())
				balance := []int{n}
				if stages == 2 {
					balance = []int{n / 2, n - n/2}
				}
				p := must.Get(pipe.New(s, pipe.Config{Balance: balance, Chunks: chunks, Seed: 1}))(t)
				defer p.Close()
				result := must.Get(p.Step(context.Background(), batch, loss))(t)
				return result.Loss, append(gradients(t, c, s), buffers(s)...)
			}
			one, whole := step(1)
			if one == 0 {
				t.Error("the loss is zero")
			}
			if two, cut := step(2); two != one || !slices.EqualFunc(whole, cut, bytes.Equal) {
				t.Errorf("gradients or running statistics differ; the loss is %v, and %v in two stages", one, two)
			}
		})
	}
}
