package pipe_test

import (
	"context"
	"reflect"
	"sync/atomic"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// A plan is made by running the layers. What they change of their buffers is put back, also where they
// count every run.
func TestPlanningMovesNoBuffers(t *testing.T) {
	torchtest.Check(t)
	for _, test := range []struct {
		name     string
		balance  []int
		schedule schedule.Generator
	}{{"one stage", []int{6}, schedule.GPipe}, {"two stages", []int{3, 3}, schedule.GPipe}, {"backwards in two parts", []int{3, 3}, schedule.ZeroBubbleH1}} {
		var ran atomic.Int64 // stages are measured at once
		counting := func() nn.Layer {
			l := &call{}
			runs := l.Buffer("runs", torch.Int64, nn.Zeros)
			l.f = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				ran.Add(1)
				c.NoGrad(func() { c.AddInt_(runs.Tensor(), 1) })
				return c.Tanh(x)
			}
			return l
		}
		model := nn.NewSequential(nn.NewLinear(4, 4), nn.NewBatchNorm1d(4, nn.BatchNormConfig{}), counting(), nn.NewLinear(4, 4), nn.NewBatchNorm1d(4, nn.BatchNormConfig{}), counting())
		p := started(t, model, pipe.Config{Balance: test.balance, Chunks: 3, Checkpoint: pipe.Optimal, Schedule: test.schedule})
		c := torch.NewCtx(torch.Options{Device: torch.CPU(5)})
		before := buffersOf(model)
		b := pipe.Batch{Input: pipe.Rows(normal(7, 4)(c, 0)), Target: pipe.Rows(normal(7, 4)(c, 1))}
		if _, err := p.PlanFor(context.Background(), b, nn.MSE()); err != nil {
			t.Fatal(err)
		}
		if after := buffersOf(model); ran.Load() == 0 || !reflect.DeepEqual(after, before) {
			t.Errorf("%s: %d runs of layers have moved buffers", test.name, ran.Load())
		}
		c.Close()
	}
}
