package pipe_test

import (
	"context"
	"errors"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/planner"
	"penstock.example/torch"
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

// TestWhatWaitsIsPlanned: a plan counts a skip that waits for a stage of another policy, and the
// gradient of an input that a view has handed on. From the least budget on the steps keep to it,
// however late the others are.
func TestWhatWaitsIsPlanned(t *testing.T) {
	for _, tt := range []struct {
		name    string
		layers  []int
		rows    int64
		chunks  int
		device  int   // of the stage that is planned, among those of the plan
		step    int64 // of the budgets
		policy  []pipe.Checkpoint
		devices []torch.Device
	}{
		{"a skip", []int{19}, 6, 3, 0, 100, []pipe.Checkpoint{pipe.Optimal, pipe.Always}, []torch.Device{torch.CPU(0), torch.CPU(1)}},
		{"a gradient", []int{0}, 2, 2, 1, 8, []pipe.Checkpoint{pipe.Never, pipe.Optimal}, []torch.Device{torch.CPU(1), torch.CPU(0)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			torchtest.Check(t)
			q := problem{model: func() *nn.Sequential { return randomModel(tt.layers, unwrapped) }, rows: tt.rows, steps: 2,
				loss: nn.CrossEntropy().Sum(), input: normal(tt.rows, 2, 6, 6), target: classes(tt.rows, 3)}
			config := func(budget int64) pipe.Config {
				return pipe.Config{Balance: []int{1, len(q.model().Layers()) - 1}, Chunks: tt.chunks, Seed: 1,
					Checkpoint: pipe.PerStage(tt.policy...), Devices: tt.devices, Budget: []int64{budget, budget}}
			}
			var short *planner.MemoryError
			planned := 0
			for budget := int64(3000); planned < 20; budget += tt.step {
				got, err := q.planned(config(budget))
				if errors.As(err, &short) { // the least is above
					continue
				}
				if err != nil {
					t.Fatalf("%d bytes: %v", budget, err)
				}
				planned++
				if peak, plan := q.latest(t, got.plan, tt.device), got.plan.Devices[tt.device].Peak; peak > plan {
					t.Errorf("%d bytes: a step takes %d, the plan says %d", budget, peak, plan)
				}
			}
		})
	}
}
