package nn_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/torch"
)

// fallible is a model of nested wrappers with skips in every direction, one layer of which does
// what fail says. In its second run a layer sees Recomputing.
func fallible(fail func(c *nn.Ctx)) *nn.Sequential {
	failing := doing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		fail(c)
		return c.Tanh(x)
	})
	inner := nn.NewSequential(stashing("inner"), nn.NewLinear(4, 4), popping("in"), failing, popping("inner"), stashing("out"))
	return nn.NewSequential(nn.NewTanh(), stashing("in"), nn.Checkpointed(nn.NewSequential(nn.NewLinear(4, 4)).Add("deep", nn.Checkpointed(inner))), nn.NewTanh(), popping("out"))
}

// However a layer fails, in whichever run: what it failed with comes out as it is, the path is the
// layer's, nothing is left, and the model runs again.
func TestFailuresInCheckpoints(t *testing.T) {
	type key struct{ int }
	plain := errors.New("plain")
	refused := &torch.Error{Op: "refused"}
	for name, row := range map[string]struct {
		fail func(c *nn.Ctx)
		is   func(p any) bool
	}{
		"a value":         {func(*nn.Ctx) { panic(key{3}) }, func(p any) bool { return p == any(key{3}) }},
		"an error":        {func(*nn.Ctx) { panic(plain) }, func(p any) bool { return p == any(plain) }},
		"a torch.Error":   {func(*nn.Ctx) { panic(refused) }, func(p any) bool { return p == any(refused) }},
		"an operator":     {func(c *nn.Ctx) { c.Mm(c.Ones(torch.Float32, 2, 3), c.Ones(torch.Float32, 2, 3)) }, func(p any) bool { return strings.Contains(fmt.Sprint(p), "aten::mm(float32[2,3]") }},
		"a missing extra": {func(c *nn.Ctx) { nn.NewExtra[int]("gone").In(c) }, func(p any) bool { return strings.Contains(fmt.Sprint(p), `no extra "gone"`) }},
		"out of memory": {func(c *nn.Ctx) {
			c.Device().SetLimit(c.Device().Memory().Live + 64)
			c.Ones(torch.Float32, 17)
		}, func(p any) bool {
			e, ok := p.(*torch.Error)
			return ok && errors.Is(e, torch.ErrOutOfMemory)
		}},
	} {
		for when, in := range map[string]func(c *nn.Ctx) bool{
			"the first run":                 func(c *nn.Ctx) bool { return !c.Recomputing },
			"the first run in a second one": func(c *nn.Ctx) bool { return c.Recomputing && c.Checkpointing },
			"the second run of both":        func(c *nn.Ctx) bool { return c.Recomputing && !c.Checkpointing },
		} {
			t.Run(name+" in "+when, func(t *testing.T) {
				a := newAccount(t, true)
				defer a.Device().SetLimit(0)
				armed := true
				model := fallible(func(c *nn.Ctx) {
					if armed && in(c) {
						row.fail(c)
					}
				})
				nn.Materialise(a.Ctx, nn.State(model), 1)
				defer nn.Free(model)
				a.start()
				run := func() (path string, failed any) {
					defer a.Close()
					defer nn.ZeroGrads(model)
					c := nn.NewCtx(a.Ctx, nn.Config{Training: true})
					failed = caught(func() {
						y := model.Forward(c, c.Ones(torch.Float32, 2, 4))
						c.Backward(list{y}, list{c.OnesLike(y)}, false)
					})
					return c.Path(), failed
				}
				path, failed := run()
				if !row.is(failed) || path != "2.deep.3" {
					t.Errorf("got %v at %q", failed, path)
				}
				a.Device().SetLimit(0)
				if a.used() != 0 {
					t.Errorf("%d bytes are left", a.used())
				}
				armed = false
				if path, failed := run(); failed != nil || path != "" {
					t.Errorf("the next run fails with %v at %q", failed, path)
				}
			})
		}
	}
}

// Goexit (FailNow, in tests) ends the goroutine in which forward or Backward was called, and leaves
// nothing.
func TestGoexitInCheckpoints(t *testing.T) {
	a := newAccount(t, true)
	recomputing := false
	model := fallible(func(c *nn.Ctx) {
		if c.Recomputing == recomputing {
			runtime.Goexit()
		}
	})
	nn.Materialise(a.Ctx, nn.State(model), 1)
	defer nn.Free(model)
	a.start()
	for _, recomputing = range []bool{false, true} {
		came, ctx := "", nn.NewCtx(a.Ctx, nn.Config{})
		var wg sync.WaitGroup
		wg.Go(func() {
			y := model.Forward(ctx, a.Ones(torch.Float32, 2, 4))
			came = "through forward"
			a.Backward(list{y}, list{a.OnesLike(y)}, false)
			came = "through backward"
		})
		wg.Wait()
		if want := map[bool]string{true: "through forward"}[recomputing]; came != want || ctx.Path() != "2.deep.3" {
			t.Errorf("recomputing %v: it came %q at %q, want %q", recomputing, came, ctx.Path(), want)
		}
		nn.ZeroGrads(model)
		a.Close()
		if a.used() != 0 {
			t.Errorf("recomputing %v: %d bytes are left", recomputing, a.used())
		}
	}
}

// Backward is given less memory than it needs, a little more each time. Wherever it runs out, in
// the second run of a layer or in going back through it, the failure is traced to a layer: to the
// very one in its second run, to the wrapper in going back through it. (The last layer in it needs
// less than the one before has let go of.)
func TestCheckpointsOutOfMemoryInBackward(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	torchtest.Check(t)
	device := torch.CPU(7)
	owner := torch.NewCtx(torch.Options{Device: device, Threads: 1})
	defer owner.Close()
	s := nn.NewSequential().Add("wrapped", nn.Checkpointed(nn.NewSequential().Add("up", nn.NewLinear(8, 60)).Add("mid", nn.NewTanh()).Add("down", nn.NewLinear(60, 8)))).Add("down", nn.NewLinear(8, 2))
	nn.Materialise(owner, nn.State(s), 1)
	defer nn.Free(s)
	if got := failuresInBackward(t, s, device, 8, 64); got != "down wrapped.up wrapped.mid wrapped" {
		t.Errorf("as memory grew the failures were in %s", got)
	}
}

// What a layer in a wrapper does to memory that is not its own is an error that says so.
func TestCheckpointedInputsMustStayAsTheyAre(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true})
	double := doing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.MulScalar(x, 2) })
	// and says nothing of it
	overwriting := doing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.ReLU_(x) })
	x := c.Ones(torch.Float32, 2).SetRequiresGrad(true)
	err := torch.Try(func() { nn.NewSequential(double, nn.Checkpointed(overwriting)).Forward(nn.NewCtx(c, nn.Config{}), x) })
	if err == nil || !strings.Contains(err.Error(), "overwrote input 0, which it needs again in backward") {
		t.Errorf("in it: %v", err)
	}
	double, overwriting = doing(double.f), doing(overwriting.f)
	y := nn.NewSequential(double, nn.Checkpointed(chain(nn.NewIdentity())), overwriting).Forward(nn.NewCtx(c, nn.Config{}), x)
	err = torch.Try(func() { c.Backward(list{y}, list{c.OnesLike(y)}, false) })
	if err == nil || !strings.Contains(err.Error(), "modified by an inplace operation") {
		t.Errorf("after it: %v", err)
	}
}

// A function that is not the same in its second run is an error, not a wrong gradient.
func TestCheckpointedMustComputeTheSame(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true})
	for want, second := range map[string]func(c *nn.Ctx, x *torch.Tensor) list{
		"returned 1 tensors, but 2 when it first ran":                       func(c *nn.Ctx, x *torch.Tensor) list { return list{x} },
		"output 1 was float32[3] when the function first ran, and is float": func(c *nn.Ctx, x *torch.Tensor) list { return list{x, c.Sum(x)} },
	} {
		x := c.Ones(torch.Float32, 3).SetRequiresGrad(true)
		model := nn.NewSequential(nn.Checkpointed(mapping(func(c *nn.Ctx, xs list) list {
			if c.Recomputing {
				return second(c, xs[0])
			}
			return list{c.Tanh(xs[0]), c.Tanh(xs[0])}
		})))
		ys := model.ForwardTuple(nn.NewCtx(c, nn.Config{}), list{x})
		err := torch.Try(func() { c.Backward(ys[1:], list{c.OnesLike(ys[1])}, false) })
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
}
