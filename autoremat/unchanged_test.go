package autoremat_test

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"penstock.example/autoremat"
	"penstock.example/nn"
	"penstock.example/remat"
	"penstock.example/torch"
)

// moving is a model whose layers fail when told to, and whose buffers change: running statistics,
// and counts of all runs.
func moving(fail func(layer int, when string)) *nn.Sequential {
	m := nn.NewSequential()
	for i := range 3 {
		l := &lambda{}
		runs := l.Buffer("runs", torch.Int64, nn.Zeros)
		l.f = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			if c.Training {
				c.NoGrad(func() { c.AddInt_(runs.Tensor(), 1) })
			}
			if c.Recomputing {
				fail(i, "again")
			} else {
				fail(i, "forward")
			}
			y := c.Tanh(x)
			if !c.Grad() {
				return y
			}
			return c.Attach([]*torch.Tensor{y}, []*torch.Tensor{c.Detach(y)}, breaking{func() { fail(i, "backward") }})[0]
		}
		m.Add(fmt.Sprint("norm", i), nn.NewBatchNorm1d(4, nn.BatchNormConfig{Cumulative: i == 1}))
		m.Add(fmt.Sprint("linear", i), nn.NewLinear(4, 4))
		m.Add(fmt.Sprint("counting", i), l)
	}
	return m
}

func stateOf(m nn.Module) map[string]string {
	out := map[string]string{}
	for _, p := range nn.State(m) {
		out[p.Name] = string(torch.Bytes(p.Tensor()))
	}
	return out
}

// TestFailedCallChangesNothing: a forward or backward that fails, at any layer and in any way,
// leaves parameters and buffers as they were. So does a forward without gradients.
func TestFailedCallChangesNothing(t *testing.T) {
	var next struct{ layer, when, kind any }
	met := false
	b := newFixture(t, moving(func(layer int, when string) {
		if next.layer != layer || next.when != when {
			return
		}
		met = true
		switch next.kind {
		case "panic":
			panic("broken")
		case "operator":
			panic(&torch.Error{Op: "aten::broken", Message: "broken"})
		default:
			runtime.Goexit()
		}
	}), autoremat.Config{Limit: 1 << 30})
	unchanged := func(what string, before map[string]string) {
		t.Helper()
		for name, value := range stateOf(b.model) {
			if value != before[name] {
				t.Errorf("%s: %s has changed", what, name)
			}
		}
	}
	// apart runs f on a goroutine of its own, which f may end.
	apart := func(f func()) {
		var all sync.WaitGroup
		all.Go(f)
		all.Wait()
	}
	before := stateOf(b.model)
	if err := b.step(b.normal(3, 4)); err != nil {
		t.Fatal(err)
	}
	if got := stateOf(b.model)["counting0.runs"]; got == before["counting0.runs"] {
		t.Fatal("nothing counts")
	}
	chain, err := b.m.Chain()
	if err != nil {
		t.Fatal(err)
	}
	for _, ops := range [][]remat.Op{remat.None(len(chain.Layers)), remat.All(len(chain.Layers))} {
		if err := b.m.SetPlan(remat.Plan{Ops: ops}); err != nil {
			t.Fatal(err)
		}
		for layer := range 3 {
			for _, kind := range []string{"panic", "operator", "Goexit"} {
				what := fmt.Sprintf("layer %d, %s", layer, kind)
				for _, grad := range []bool{true, false} {
					before, failed := stateOf(b.model), true
					next.layer, next.when, next.kind = layer, "forward", kind
					apart(func() {
						n := b.ctx()
						n.SetGrad(grad)
						_, err := b.m.Run(n, b.normal(3, 4))
						failed = err != nil
					})
					next.layer = nil
					if !failed {
						t.Errorf("%s: no failure", what)
					}
					unchanged(what+", forward", before)
					b.Close()
				}
				for _, when := range []string{"again", "backward"} {
					n := b.ctx()
					ys, err := b.m.Run(n, b.normal(3, 4))
					if err != nil {
						t.Fatal(err)
					}
					loss, before, failed := b.Sum(ys[0]), stateOf(b.model), true
					next.layer, next.when, next.kind, met = layer, when, kind, false
					apart(func() { failed = b.m.Backward(n, []*torch.Tensor{loss}, nil) != nil })
					next.layer = nil
					if failed != met {
						t.Errorf("%s, %s: failed %v", what, when, failed)
					}
					if failed {
						unchanged(what+", "+when, before)
					}
					nn.ZeroGrads(b.model)
					b.Close()
				}
			}
		}
	}
}

// The same where memory is refused, at each allocation of a forward and of a backward.
func TestRefusedCallChangesNothing(t *testing.T) {
	b := newFixture(t, moving(func(int, string) {}), autoremat.Config{Limit: 1 << 30})
	for range 2 {
		if err := b.step(b.normal(3, 4)); err != nil {
			t.Fatal(err)
		}
	}
	for _, part := range []string{"forward", "backward"} {
		limit := int64(0)
		for done := false; !done; {
			n, before := b.ctx(), stateOf(b.model)
			call := func(f func() error) (err error) {
				device.SetLimit(max(limit, device.Memory().Live))
				defer device.SetLimit(1 << 30)
				return f()
			}
			var err error
			x := b.normal(3, 4)
			if part == "forward" {
				err = call(func() error { _, err := b.m.Run(n, x); return err })
			} else {
				ys, failed := b.m.Run(n, x)
				if failed != nil {
					t.Fatal(failed)
				}
				loss := b.Sum(ys[0])
				before = stateOf(b.model)
				err = call(func() error { return b.m.Backward(n, []*torch.Tensor{loss}, nil) })
			}
			var refused *torch.MemoryError
			switch {
			case err == nil:
				done = true
			case !errors.As(err, &refused):
				t.Fatal(err)
			default:
				limit = refused.Live + refused.Requested
				for name, value := range stateOf(b.model) {
					if value != before[name] {
						t.Fatalf("%s, %v: %s has changed", part, err, name)
					}
				}
			}
			nn.ZeroGrads(b.model)
			b.Close()
		}
		if limit == 0 {
			t.Errorf("no %s was refused", part)
		}
	}
}

// What measuring moves is put back, whatever the layers do.
func TestMeasuringMovesNothing(t *testing.T) {
	b := newFixture(t, moving(func(int, string) {}), autoremat.Config{Limit: 1 << 30})
	before := stateOf(b.model)
	if err := b.m.Measure(t.Context(), b.ctx(), autoremat.Sample{Input: []*torch.Tensor{b.normal(3, 4)}}); err != nil {
		t.Fatal(err)
	}
	for name, value := range stateOf(b.model) {
		if value != before[name] {
			t.Errorf("%s has changed", name)
		}
	}
}
