package pipe_test

import (
	"context"
	"errors"
	"testing"

	"penstock/internal/torchtest"
	"penstock/nn"
	"penstock/pipe"
	"penstock/planner"
	"penstock/torch"
)

// TestSkipOfLayersWithoutBackward: where a skip comes from layers that have no backward, its
// gradient is dropped where it arrives. The steps keep to the bytes of the plan, also at the least
// budget.
func TestSkipOfLayersWithoutBackward(t *testing.T) {
	torchtest.Check(t)
	model := func() *nn.Sequential { return randomModel([]int{11, 24, 17}, unwrapped) } // a block after a frozen layer
	c := torch.NewCtx(torch.Options{Device: torch.CPU(7)})
	defer c.Close()
	batch := pipe.Batch{Input: pipe.Rows(normal(3, 2, 6, 6)(c, 0)), Target: pipe.Rows(classes(3, 3)(c, 0))}
	budget := int64(1)
	for range 2 {
		m := model()
		p, err := pipe.Open(m, pipe.Config{Chunks: 3, Balance: []int{2, len(m.Layers()) - 2},
			Checkpoint: pipe.PerStage(pipe.Always, pipe.Optimal), Budget: []int64{0, budget}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = p.PlanFor(context.Background(), batch, nn.CrossEntropy())
		var short *planner.MemoryError
		if errors.As(err, &short) {
			budget, err = short.Least(), nil
		} else if err == nil {
			if err = p.Place(); err == nil {
				torch.CPU(1).ResetPeak()
				_, err = p.Step(context.Background(), batch, nn.CrossEntropy())
			}
			if plan, took := p.Plan().Devices[1].Peak, torch.CPU(1).Memory().Peak; took != plan {
				t.Errorf("a step takes %d bytes, the plan says %d", took, plan)
			}
		}
		if err != nil {
			t.Error(err)
		}
		p.Close()
		nn.Free(m)
	}
}
