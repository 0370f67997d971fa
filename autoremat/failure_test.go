package autoremat_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"penstock.example/autoremat"
	"penstock.example/nn"
	"penstock.example/planner"
	"penstock.example/remat"
	"penstock.example/torch"
)

// fragile is a model each of whose layers asks fail what to do, forward, again and back.
func fragile(fail func(layer int, when string)) *nn.Sequential {
	m := nn.NewSequential()
	for i := range 4 {
		l := &lambda{}
		p := l.Param("weight", nn.FanIn(4), 4, 4)
		l.f = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			if c.Recomputing {
				fail(i, "again")
			} else {
				fail(i, "forward")
			}
			y := c.PlainLinear(x, p.Tensor(), nil)
			if !c.Grad() {
				return y
			}
			return c.Attach([]*torch.Tensor{y}, []*torch.Tensor{c.Detach(y)}, breaking{func() { fail(i, "backward") }})[0]
		}
		m.Add(fmt.Sprint("l", i), l)
		m.Add(fmt.Sprint("t", i), nn.NewTanh())
	}
	return nn.NewSequential().Add("deep", m)
}

// named says whether an error names the layer want. For a panic in backward that is not an
// operator's, only the unit is known.
func named(layer, want, when, kind string) bool {
	return layer == want || when == "backward" && kind == "panic" && strings.HasPrefix(layer, want+"..")
}

// breaking passes gradients on, if during lets it.
type breaking struct{ during func() }

func (b breaking) Backward(_ *torch.Ctx, a *torch.Arrival) {
	b.during()
	a.InputGrads[0] = a.Grads[0]
}

func (breaking) Forget() {}

// TestFailures: wherever a layer fails, in forward, in recomputation or in backward, and in
// whatever way, the error names it, nothing is leaked, and the module trains again.
func TestFailures(t *testing.T) {
	type failure struct {
		layer      int
		when, kind string
	}
	var next *failure
	plain := errors.New("broken")
	b := newFixture(t, fragile(func(layer int, when string) {
		if next == nil || next.layer != layer || next.when != when {
			return
		}
		switch next.kind {
		case "panic":
			panic(plain)
		case "operator":
			panic(&torch.Error{Op: "aten::broken", Message: "broken"})
		default:
			runtime.Goexit()
		}
	}), autoremat.Config{Limit: 1 << 30})
	x := b.normal(3, 4)
	if err := b.step(x); err != nil {
		t.Fatal(err)
	}
	chain, err := b.m.Chain()
	if err != nil {
		t.Fatal(err)
	}
	n := len(chain.Layers)
	if err := b.m.SetPlan(remat.Plan{Ops: remat.All(n)}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := b.step(x); err != nil {
			t.Fatal(err)
		}
	}
	live, tensors := device.Memory().Live, torch.LiveTensors()
	for layer := range 4 {
		for _, when := range []string{"forward", "again", "backward"} {
			for _, kind := range []string{"panic", "operator", "Goexit"} {
				next = &failure{layer, when, kind}
				var err error
				returned := false
				var wg sync.WaitGroup
				wg.Go(func() {
					defer b.Close()
					defer nn.ZeroGrads(b.model)
					x := b.Keep(b.Share(x))
					defer x.Free()
					err = b.step(x)
					returned = true
				})
				wg.Wait()
				next = nil
				if returned == (kind == "Goexit") {
					t.Errorf("layer %d, %s, %s: returned is %v", layer, when, kind, returned)
				}
				var e *autoremat.Error
				if want := fmt.Sprint("deep.l", layer); kind != "Goexit" && (!errors.As(err, &e) || !named(e.Layer, want, when, kind) || !strings.Contains(err.Error(), "broken") || (kind == "panic") != errors.Is(err, plain)) {
					t.Errorf("layer %d, %s, %s: got %v, want an error of %s", layer, when, kind, err, want)
				}
				var panicked *torch.PanicError
				if found := errors.As(err, &panicked); found != (kind == "panic") || found && !strings.Contains(string(panicked.Stack), "remat_test.") || err != nil && strings.Contains(err.Error(), "\n") {
					t.Errorf("layer %d, %s, %s: the error is %v, its panic %+v; want one line, and the stack apart", layer, when, kind, err, panicked)
				}
				x = b.normal(3, 4)
				if err := b.step(x); err != nil {
					t.Fatalf("after layer %d, %s, %s: %v", layer, when, kind, err)
				}
				if got := device.Memory().Live; got != live || torch.LiveTensors() != tensors {
					t.Fatalf("layer %d, %s, %s: %d bytes and %d tensors more are live", layer, when, kind, got-live, torch.LiveTensors()-tensors)
				}
			}
		}
	}
}

// An input that is overwritten although it is needed again is an error, not a wrong gradient.
func TestOverwrittenInput(t *testing.T) {
	b := newFixture(t, tower().model(), autoremat.Config{Limit: 1 << 30})
	x := b.normal(8, 32)
	if err := b.step(x); err != nil {
		t.Fatal(err)
	}
	chain, err := b.m.Chain()
	if err != nil {
		t.Fatal(err)
	}
	for name, row := range map[string]struct {
		ops  []remat.Op
		want string
	}{"computed again": {remat.All(len(chain.Layers)), "input 0 was overwritten between forward and backward"}, "saved": {remat.None(len(chain.Layers)), "modified by an inplace operation"}} {
		if err := b.m.SetPlan(remat.Plan{Ops: row.ops}); err != nil {
			t.Fatal(err)
		}
		n := b.ctx()
		y := b.m.Forward(n, x)
		b.NoGrad(func() { b.MulScalar_(x, 2) })
		err := b.m.Backward(n, []*torch.Tensor{b.Sum(y)}, nil)
		if err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: got %v, want %q", name, err, row.want)
		}
		if err := b.m.Backward(n, []*torch.Tensor{b.Sum(y)}, nil); err == nil {
			t.Errorf("%s: a backward after one that failed", name)
		}
		nn.ZeroGrads(b.model)
	}
}

// A graph that was not kept cannot be gone back through again.
func TestTwiceWithoutKeeping(t *testing.T) {
	b := newFixture(t, tower().model(), autoremat.Config{Limit: 1 << 30})
	n := b.ctx()
	y := b.m.Forward(n, b.normal(8, 32))
	if err := b.m.Backward(n, []*torch.Tensor{b.Sum(y)}, nil); err != nil {
		t.Fatal(err)
	}
	if err := b.m.Backward(n, []*torch.Tensor{b.Sum(y)}, nil); err == nil || !strings.Contains(err.Error(), "second time") {
		t.Errorf("got %v", err)
	}
}

// TestOthersAllocateTheLimit: while the module is open its limit holds for every allocation on the
// device. A step that no longer fits beside other tensors is refused before it begins.
func TestOthersAllocateTheLimit(t *testing.T) {
	b := newFixture(t, tower().model(), autoremat.Config{Limit: 1 << 20})
	x := b.normal(64, 32)
	for range 2 {
		if err := b.step(x); err != nil {
			t.Fatal(err)
		}
	}
	live, most := device.Memory().Live, b.m.Predicted()
	other := b.Empty(torch.Float32, (1<<20-live)/4-1000)
	var e *planner.MemoryError
	if err := b.step(x); !errors.As(err, &e) || e.Stages[0].Limit != 1<<20 || e.Least() <= 1<<20 {
		t.Errorf("got %v", err)
	}
	if err := torch.Try(func() { b.Empty(torch.Float32, 2000) }); !errors.Is(err, torch.ErrOutOfMemory) {
		t.Errorf("beyond the limit: %v", err)
	}
	other.Free()
	if err := b.step(x); err != nil || b.m.Predicted() != most {
		t.Errorf("with enough memory again: %v, predicted %d, before %d", err, b.m.Predicted(), most)
	}
}

// TestUndeclaredChildren: a module with an undeclared child is refused by name, with the call that
// is missing, when it is measured and when it runs.
func TestUndeclaredChildren(t *testing.T) {
	inner := layer(nil)
	inner.f = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Run(x, nn.NewLinear(4, 4)) }
	b := newFixture(t, nn.NewSequential(nn.NewLinear(4, 4)).Add("block", nn.NewSequential(nn.NewTanh(), inner)), autoremat.Config{Limit: 1 << 30})
	x := b.normal(3, 4)
	_, evaluating := b.m.Run(nn.NewCtx(b.Ctx, nn.Config{}), x)
	for when, err := range map[string]error{"training": b.step(x), "evaluating": evaluating} {
		want := `*nn.Linear is no declared child of *autoremat_test.lambda, layer "block.1", which runs it; call Child("linear", the *nn.Linear) of the *autoremat_test.lambda where it is made`
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", when, err, want)
		}
	}
}

// There is no step on no rows. In evaluation there may be none.
func TestNoRows(t *testing.T) {
	b := newFixture(t, nn.NewSequential(nn.NewLinear(4, 4), nn.NewTanh()), autoremat.Config{Limit: 1 << 30})
	x := b.normal(0, 4)
	if err := b.step(x); err == nil || !strings.Contains(err.Error(), "has no rows (float32[0,4]); a step needs at least one") {
		t.Errorf("got %v", err)
	}
	if ys, err := b.m.Run(nn.NewCtx(b.Ctx, nn.Config{}), x); err != nil || ys[0].String() != "float32[0,4]" {
		t.Errorf("in evaluation: %v, %v", ys, err)
	}
}
