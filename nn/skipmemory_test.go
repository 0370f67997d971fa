package nn_test

import (
	"fmt"
	"slices"
	"testing"

	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/torch"
)

// Without a graph nothing but the model's skips keeps an activation: what is live between two
// layers is known to the byte.
func TestASkipIsFreedAtItsLastPop(t *testing.T) {
	const activation = 4 * 1000
	var a *account
	var live []int64 // at each probe, in activations
	probe := func() nn.Layer {
		return doing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			if a.used()%activation != 0 {
				t.Errorf("%d bytes are no number of activations", a.used())
			}
			live = append(live, a.used()/activation)
			return x
		})
	}
	tanh := func() nn.Layer { return nn.NewTanh() }
	ignoring := func() nn.Layer {
		return declaring("", "a", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			c.Pop("a")
			return x
		})
	}
	for _, row := range []struct {
		reason string
		model  *nn.Sequential
		want   []int64
	}{
		{"one pop", nn.NewSequential(tanh(), stashing("a"), probe(), tanh(), probe(), popping("a"), probe(), tanh(), probe()), []int64{1, 2, 1, 1}},
		{"three pops", nn.NewSequential(tanh(), stashing("a"), tanh(), popping("a"), probe(), popping("a"), probe(), popping("a"), probe()), []int64{2, 2, 1}},
		{"pops in children of one layer, whose input lives until it returns", nn.NewSequential(tanh(), stashing("a"), tanh(), composite(popping("a"), probe(), popping("a"), probe()), probe()), []int64{3, 2, 1}},
		{"a pop that is not used", nn.NewSequential(tanh(), stashing("a"), tanh(), probe(), ignoring(), probe()), []int64{2, 1}},
		{"two skips", nn.NewSequential(tanh(), stashing("a"), tanh(), stashing("b"), tanh(), probe(), popping("a"), probe(), popping("b"), probe()), []int64{3, 2, 1}},
		{"nested", nn.NewSequential(nn.NewSequential(tanh(), stashing("a")), nn.NewSequential(tanh(), probe(), nn.NewSequential(popping("a"))), probe()), []int64{2, 1}},
		{"the input, which is the caller's", nn.NewSequential(stashing("a"), tanh(), probe(), popping("a"), probe()), []int64{1, 1}},
		{"a layer frees what it popped when it has used it", nn.NewSequential(tanh(), stashing("a"), tanh(), declaring("", "a", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			skip := c.Pop("a")
			y := c.Mul(x, skip)
			skip.Free()
			live = append(live, a.used()/activation)
			return y
		}), probe()), []int64{2, 1}},
	} {
		t.Run(row.reason, func(t *testing.T) {
			a, live = newAccount(t, false), nil
			x := a.Ones(torch.Float32, 10, 100)
			a.start()
			y := row.model.Forward(nn.NewCtx(a.Ctx, nn.Config{}), x)
			if !slices.Equal(live, row.want) {
				t.Errorf("%v activations are live, want %v", live, row.want)
			}
			if a.used() != activation {
				t.Errorf("%d bytes are live at the end, want the output's %d", a.used(), activation)
			}
			y.Free()
			if a.used() != 0 {
				t.Errorf("%d bytes are left", a.used())
			}
		})
	}
}

// What a skip adds to a graph is nothing: the tensors that autograd keeps are those of the network
// written out, and all go with the graph.
func TestASkipAddsNothingToTheGraph(t *testing.T) {
	kept := func(f func(model *nn.Sequential, c *nn.Ctx, x *torch.Tensor) *torch.Tensor) int64 {
		a := newAccount(t, true)
		linear := nn.NewLinear(8, 8)
		model := nn.NewSequential(nn.NewTanh(), stashing("a"), linear, popping("a"), popping("a"))
		nn.Materialise(a.Ctx, nn.State(model), 1)
		defer nn.Free(model)
		x := a.Normal_(a.Empty(torch.Float32, 16, 8), 0, 1).SetRequiresGrad(true)
		a.start()
		mark := a.Mark()
		y := f(model, nn.NewCtx(a.Ctx, nn.Config{Training: true}), x)
		a.Release(mark, y)
		live := a.used()
		a.Backward([]*torch.Tensor{y}, []*torch.Tensor{a.OnesLike(y)}, false)
		x.SetGradOf(nil)
		nn.ZeroGrads(model)
		a.Close()
		return live
	}
	got := kept(func(model *nn.Sequential, c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return model.Forward(c, x) })
	want := kept(func(model *nn.Sequential, c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		h := c.Tanh(x)
		return c.Add(c.Add(model.Layers()[2].Forward(c, h), h), h)
	})
	if got != want {
		t.Errorf("%d bytes are kept, want %d", got, want)
	}
}

// Wherever a layer panics, and with whatever, the skips that were under way are freed, and the
// model runs again.
func TestAPanicLeavesNoSkip(t *testing.T) {
	type userPanic struct{}
	const places = 9
	for _, failure := range []any{userPanic{}, &torch.Error{Op: "Forward"}} {
		for _, own := range []bool{true, false} {
			for at := range places {
				t.Run(fmt.Sprintf("%T at %d, store given: %v", failure, at, !own), func(t *testing.T) {
					a := newAccount(t, true)
					place, armed := 0, true
					fail := func() {
						if place++; armed && place == at+1 {
							panic(failure)
						}
					}
					failing := func() nn.Layer {
						return doing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { fail(); return x })
					}
					stash := declaring("b", "", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
						fail()
						c.Stash("b", c.Tanh(x))
						fail()
						return x
					})
					pop := declaring("", "a b", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
						fail()
						x = c.Add(x, c.Pop("b"))
						fail()
						return c.Add(x, c.Pop("a"))
					})
					model := nn.NewSequential(nn.NewTanh(), stashing("a"), failing(), composite(failing(), stash), nn.NewSequential(failing(), popping("a")), pop, failing(), popping("b"), failing())
					x := a.Ones(torch.Float32, 10, 10).SetRequiresGrad(true)
					a.start()
					run := func() {
						if own {
							model.Forward(nn.NewCtx(a.Ctx, nn.Config{}), x)
							return
						}
						routes := must.Get(model.SkipRoutes())(t)
						store := nn.NewSkipStore(routes, 0, len(model.Layers()))
						defer store.Free()
						c, xs := nn.NewCtx(a.Ctx, nn.Config{Skips: store}), []*torch.Tensor{x}
						for _, l := range model.Layers() {
							xs = c.RunNamed(l, xs)
						}
					}
					mark := a.Mark()
					if got := caught(run); got != failure {
						t.Fatalf("got %v", got)
					}
					a.Release(mark)
					if a.used() != 0 {
						t.Errorf("%d bytes are left", a.used())
					}
					armed = false
					if got := caught(run); got != nil {
						t.Errorf("the next run fails with %v", got)
					}
					if place -= at + 1; place != places {
						t.Errorf("%d places to fail at, not %d", place, places)
					}
				})
			}
		}
	}
}

// caught is what f panics with.
func caught(f func()) (what any) {
	defer func() { what = recover() }()
	f()
	return nil
}

func TestAStoreFreesWhatWasNeverFetched(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	model := nn.NewSequential(stashing("a"), stashing("b"), nn.NewTanh(), popping("a"), popping("b"), popping("b"))
	routes := must.Get(model.SkipRoutes())(t)
	first, second := nn.NewSkipStore(routes, 0, 2), nn.NewSkipStore(routes, 2, 6)
	ctx, xs := nn.NewCtx(c, nn.Config{Skips: first}), []*torch.Tensor{c.Ones(torch.Float32, 3)}
	for _, l := range model.Layers()[:2] {
		xs = ctx.RunNamed(l, xs)
	}
	a := first.Take(ctx, routes[0].Key)
	if again := first.Take(ctx, routes[0].Key); again != nil {
		t.Errorf("taken again, it is %v", again)
	}
	second.Give(routes[0].Key, a)
	second.Give(routes[1].Key, c.Keep(c.Ones(torch.Float32, 3)), c.Keep(c.Ones(torch.Float32, 3)))
	for range 2 { // the second has nothing to do
		first.Free()
		second.Free()
	}
}
