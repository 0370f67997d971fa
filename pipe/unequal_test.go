package pipe_test

import (
	"context"
	"runtime"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/profile"
	"penstock.example/remat"
	"penstock.example/torch"
)

// TestStagesOnUnequalDevicesAreMeasuredEach: a model is measured once for each kind of device that its stages are on,
// placed or not, and has the same bytes and results as on equal ones.
func TestStagesOnUnequalDevicesAreMeasuredEach(t *testing.T) {
	torchtest.Check(t)
	q := planned(t)["mlp"]
	once := 0 // how often a layer is run where a model is measured for one kind of device
	run := func(place bool, kinds ...string) (chains []profile.Chain, losses []float64) {
		t.Helper()
		model := q.model()
		runs := 0
		model.Add("counts", &counts{n: &runs})
		defer nn.Free(model)
		p, err := pipe.Open(model, pipe.Config{Balance: []int{4, 3, 2}, Chunks: 3, Checkpoint: pipe.Optimal, Seed: 1,
			Threads: runtime.NumCPU()}) // so that no other device works while one is measured, for as many runs as that takes
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		asked := 0
		p.SetHardware(func(d torch.Device) string { asked++; return kinds[d.Index] })
		if place {
			if err := p.Place(); err != nil {
				t.Fatal(err)
			}
		}
		c := torch.NewCtx(torch.Options{Threads: 1})
		defer c.Close()
		b := pipe.Batch{Input: pipe.Rows(q.input(c, 0)), Target: pipe.Rows(q.target(c, 0))}
		if _, err := p.PlanFor(context.Background(), b, q.loss); err != nil {
			t.Fatal(err)
		}
		if asked == 0 {
			t.Error("nobody asks what devices are")
		}
		if err := p.Place(); err != nil {
			t.Fatal(err)
		}
		measured := runs
		r, err := p.Step(context.Background(), b, q.loss)
		if err != nil {
			t.Fatal(err)
		}
		// On a busy machine a measurement makes fewer passes.
		if n := len(slices.Compact(slices.Sorted(slices.Values(kinds)))); once > 0 && (2*measured < (2*n-1)*once || 2*measured > (2*n+1)*once) {
			t.Errorf("placed %v, on %v: the last layer is run %d times for %d kinds, and %d for one", place, kinds, measured, n, once)
		} else if n == 1 {
			once = measured
		}
		return p.Measured(), []float64{r.Loss}
	}
	want, loss := run(false, "a", "a", "a")
	bytes := cmp.Options{cmpopts.IgnoreFields(profile.Chain{}, "Spread", "Timing", "UnitTimes"), cmpopts.IgnoreFields(remat.Layer{}, "Forward", "ForwardNoGrad", "Backward", "BackwardLater"),
		cmpopts.IgnoreFields(remat.Deferred{}, "Share", "Longer")}
	for _, kinds := range [][]string{{"a", "b", "a"}, {"a", "b", "c"}} {
		for _, place := range []bool{false, true} {
			got, same := run(place, kinds...)
			if d := cmp.Diff(want, got, bytes); d != "" {
				t.Errorf("placed %v, on %v: other bytes (-equal +unequal):\n%s", place, kinds, d)
			}
			if !slices.Equal(loss, same) {
				t.Errorf("placed %v, on %v: the loss is %v, and %v on equal ones", place, kinds, same, loss)
			}
		}
	}
}

// counts is a layer that counts how often it is run.
type counts struct {
	nn.Base
	n *int
}

func (l *counts) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	*l.n++
	return c.MulScalar(x, 1)
}
