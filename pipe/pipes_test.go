package pipe_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// Pipes that plan at the same time measured on one device, and each took what the others had there
// for its own: plans failed ("saved_bytes: -15880 bytes; want 0 or more"), or were made for sizes
// that no layer has. What they measure is what each measures by itself.
func TestPipesMeasureAtOnce(t *testing.T) {
	torchtest.Check(t)
	q := planned(t)["resnet20"]
	const pipes = 4
	var got [pipes][]int64
	measure := func(i int) {
		model := q.model()
		p, err := pipe.New(model, pipe.Config{
			Balance: []int{6, len(model.Layers()) - 6}, Chunks: 2, Checkpoint: pipe.Optimal, Devices: []torch.Device{torch.CPU(2 * i), torch.CPU(2*i + 1)}, Seed: 1,
		})
		if err != nil {
			t.Error(err)
			return
		}
		defer nn.Free(model)
		defer p.Close()
		c := torch.NewCtx(torch.Options{Device: torch.CPU(2 * i)})
		defer c.Close()
		if _, err := p.PlanFor(context.Background(),
			pipe.Batch{Input: pipe.Rows(q.input(c, 0)), Target: pipe.Rows(q.target(c, 0))}, q.loss); err != nil {
			t.Error(err)
			return
		}
		for _, s := range p.Measured() {
			got[i] = append(got[i], s.ProloguePeak)
			for _, l := range s.Chain.Layers {
				got[i] = append(got[i], l.Output, l.Saved, l.ForwardTmp, l.BackwardTmp)
			}
		}
	}
	measure(0)
	want := got[0]
	got[0] = nil
	var all sync.WaitGroup
	for i := range pipes {
		all.Go(func() { measure(i) })
	}
	all.Wait()
	for i := range got {
		if !slices.Equal(got[i], want) {
			t.Errorf("pipe %d measured %v, alone %v", i, got[i], want)
		}
	}
}
