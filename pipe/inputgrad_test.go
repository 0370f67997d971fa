package pipe_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/planner"
	"penstock.example/torch"
)

// The gradient of the batch's input is in the plan: it is made in the size of the whole batch, for each
// micro-batch anew, and stays.
func TestOptimalWithAGradientOfTheInput(t *testing.T) {
	for _, chunks := range []int{1, 3} {
		for _, balance := range [][]int{{4}, {2, 2}} {
			t.Run(fmt.Sprint(chunks, balance), func(t *testing.T) {
				torchtest.Check(t)
				run := func(budget int64) (plan *planner.Plan, err error) {
					model := nn.NewSequential(nn.NewLinear(40, 8), nn.NewTanh(), nn.NewLinear(8, 8), nn.NewLinear(8, 4))
					p, err := pipe.New(model, pipe.Config{Balance: balance, Chunks: chunks, Checkpoint: pipe.Optimal, Seed: 1, Budget: []int64{budget}})
					if err != nil {
						return nil, err
					}
					defer nn.Free(model)
					defer p.Close()
					c := torch.NewCtx(torch.Options{Threads: 1, Device: torch.CPU(7)})
					defer c.Close()
					for step := range 2 {
						x := normal(9, 40)(c, step).SetRequiresGrad(true)
						b := pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(normal(9, 4)(c, step)), Step: int64(step)}
						if plan, err = p.PlanFor(context.Background(), b, nn.MSE()); err != nil {
							return nil, err
						}
						for again := range 2 { // without a gradient, and adding to it
							torch.CPU(0).ResetPeak()
							if _, err := p.Step(context.Background(), b, nn.MSE()); err != nil {
								return nil, err
							}
							if peak, planned := torch.CPU(0).Memory().Peak, p.Plan().Devices[0].Peak; peak != planned {
								t.Errorf("with %d bytes, step %d.%d: %d bytes, planned %d", budget, step, again, peak, planned)
							}
							nn.ZeroGrads(model)
						}
						x.SetGradOf(nil)
						c.Close()
					}
					return plan, nil
				}
				unbound, err := run(0)
				if err != nil {
					t.Fatal(err)
				}
				_, err = run(unbound.Devices[0].Base + 1)
				var short *planner.MemoryError
				if !errors.As(err, &short) {
					t.Fatal(err)
				}
				if _, err := run(short.Least() + 9*40*4); err != nil { // the gradient that is added to
					t.Errorf("with %d bytes: %v", short.Least(), err)
				}
			})
		}
	}
}
