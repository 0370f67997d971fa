package autoremat_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"penstock.example/autoremat"
	"penstock.example/internal/engine"
	"penstock.example/internal/must"
	"penstock.example/nn"
	"penstock.example/plan"
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
			y := c.Op("aten::tanh", x)
			if !c.Grad() {
				return y
			}
			return engine.Attach(c.Ctx, []*torch.Tensor{y}, []*torch.Tensor{c.Detach(y)},
				breaking{func() { fail(i, "backward") }})[0]
		}
		m.Add(fmt.Sprint("norm", i), nn.NewBatchNorm1d(4, nn.BatchNormConfig{}))
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

// breaking passes gradients on, if during lets it.
type breaking struct{ during func() }

func (b breaking) Backward(_ *torch.Ctx, a *engine.Arrival) {
	b.during()
	a.InputGrads[0] = a.Grads[0]
}

func (breaking) Forget() {}

// tighten gives the module the least limit for a batch, so that layers are run again.
func (b *fixture) tighten(t *testing.T, x *torch.Tensor) {
	t.Helper()
	var short *plan.MemoryError
	if err := errors.Join(b.m.SetLimit(1), b.step(x)); !errors.As(err, &short) {
		t.Fatal(err)
	}
	must.Do(t, errors.Join(b.m.SetLimit(short.Least()), b.step(x)))
}

// TestFailedCallChangesNothing: a forward or backward that fails, at any layer and in any way, names
// the layer, leaves parameters and buffers as they were, and leaks nothing. So does a forward without
// gradients.
func TestFailedCallChangesNothing(t *testing.T) {
	var next struct{ layer, when, kind any }
	met, plain := false, errors.New("broken")
	b := newFixture(t, moving(func(layer int, when string) {
		if next.layer != layer || next.when != when {
			return
		}
		met = true
		switch next.kind {
		case "panic":
			panic(plain)
		default:
			panic(&torch.Error{Op: "aten::broken", Message: "broken"})
		}
	}), autoremat.Config{Limit: 1 << 30})
	x := b.Keep(b.normal(512, 4))
	defer x.Free()
	before := stateOf(b.model)
	must.Do(t, b.step(x))
	if got := stateOf(b.model)["counting0.runs"]; got == before["counting0.runs"] {
		t.Fatal("nothing counts")
	}
	again := 0
	for _, tight := range []bool{false, true} {
		if tight {
			b.tighten(t, x)
		}
		live, tensors := device.Memory().Live, torch.LiveTensors()
		for layer := range 3 {
			for _, kind := range []string{"panic", "operator"} {
				for _, when := range []string{"forward", "forward without gradients", "again", "backward"} {
					what := fmt.Sprintf("layer %d, %s, %s, tight %v", layer, kind, when, tight)
					n, before, met0 := b.ctx(), stateOf(b.model), false
					var err error
					call := func(f func() error) {
						next.layer, next.when, next.kind, met = layer, strings.Fields(when)[0], kind, false
						err = f()
						next.layer, met0 = nil, met
					}
					if strings.HasPrefix(when, "forward") {
						n.SetGrad(when == "forward")
						call(func() error { _, err := b.run(n, x); return err })
					} else {
						y, failed := b.run(n, x)
						if failed != nil {
							t.Fatal(failed)
						}
						before = stateOf(b.model)
						call(func() error { return b.back(y) })
					}
					if when == "again" && met0 {
						again++
					}
					if (err != nil) != met0 || !met0 && when != "again" {
						t.Errorf("%s: got %v", what, err)
					}
					if want := fmt.Sprint("counting", layer); err != nil &&
						(n.Path() != want && when != "backward" || !strings.Contains(err.Error(), "broken") ||
							(kind == "panic") != errors.Is(err, plain)) {
						t.Errorf("%s: got %v in %q, want an error of %s", what, err, n.Path(), want)
					}
					for name, value := range stateOf(b.model) {
						if met0 && value != before[name] {
							t.Errorf("%s: %s has changed", what, name)
						}
					}
					nn.ZeroGrads(b.model)
					b.Close()
					if got := device.Memory().Live; got != live || torch.LiveTensors() != tensors {
						t.Fatalf("%s: %d bytes and %d tensors more are live", what, got-live, torch.LiveTensors()-tensors)
					}
				}
			}
		}
	}
	if again == 0 {
		t.Error("nothing was run again")
	}
}

// The same where memory is refused, at each allocation of a forward and of a backward.
func TestRefusedCallChangesNothing(t *testing.T) {
	b := newFixture(t, moving(func(int, string) {}), autoremat.Config{Limit: 1 << 30})
	for range 2 {
		must.Do(t, b.step(b.normal(3, 4)))
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
				err = call(func() error { _, err := b.run(n, x); return err })
			} else {
				y, failed := b.run(n, x)
				if failed != nil {
					t.Fatal(failed)
				}
				before = stateOf(b.model)
				loss := b.Sum(y)
				err = call(func() error {
					return torch.Try(func() {
						b.Backward([]*torch.Tensor{loss}, []*torch.Tensor{nil}, false)
					})
				})
			}
			var refused *torch.MemoryError
			var short *plan.MemoryError
			switch {
			case err == nil:
				done = true
			case errors.As(err, &short):
				limit = short.Least()
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

// An input that is overwritten although it may be needed again is an error, not a wrong gradient.
func TestOverwrittenInput(t *testing.T) {
	b := newFixture(t, tower().model(), autoremat.Config{Limit: 1 << 30})
	x := b.normal(8, 32)
	y := b.m.Forward(b.ctx(), x)
	b.NoGrad(func() { b.MulScalar_(x, 2) })
	if err := b.back(y); err == nil || !strings.Contains(err.Error(),
		"input 0 was overwritten between forward and backward") {
		t.Errorf("got %v", err)
	}
}
