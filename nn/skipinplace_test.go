package nn_test

import (
	"runtime"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/torch"
)

// inPlace is a layer of tuples that overwrites its first tensor.
type inPlace struct{ nn.Base }

func (*inPlace) OverwritesInput() bool { return true }
func (*inPlace) ForwardTuple(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
	return []*torch.Tensor{c.ReLU_(xs[0])}
}

// A layer that says that it overwrites its input is given a copy of what is still to be popped.
func TestInPlaceAfterAStashGivesTheBitsOfACopy(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	view := func() nn.Layer {
		return doing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Reshape(x, 3, 4) })
	}
	for _, row := range []struct {
		reason string
		relu   func() nn.Layer // in place
		build  func(relu nn.Layer) []nn.Layer
	}{
		{"at once", func() nn.Layer { return nn.NewReLUInPlace() }, func(relu nn.Layer) []nn.Layer {
			return []nn.Layer{nn.NewLinear(4, 4), stashing("a"), relu, nn.NewLinear(4, 4), popping("a")}
		}},
		{"a view later", func() nn.Layer { return nn.NewReLUInPlace() }, func(relu nn.Layer) []nn.Layer {
			return []nn.Layer{nn.NewLinear(4, 4), stashing("a"), view(), nn.NewIdentity(), relu, nn.NewLinear(4, 4), popping("a")}
		}},
		{"first in a Sequential", func() nn.Layer { return nn.NewReLUInPlace() }, func(relu nn.Layer) []nn.Layer {
			return []nn.Layer{nn.NewLinear(4, 4), stashing("a"), nn.NewSequential(nn.NewSequential(relu), nn.NewLinear(4, 4)), popping("a")}
		}},
		{"second in a Sequential, after a layer that hands its input on", func() nn.Layer { return nn.NewReLUInPlace() }, func(relu nn.Layer) []nn.Layer {
			return []nn.Layer{nn.NewLinear(4, 4), stashing("a"), nn.NewSequential(nn.NewIdentity(), relu, nn.NewLinear(4, 4)), popping("a")}
		}},
		{"as a child", func() nn.Layer { return nn.NewReLUInPlace() }, func(relu nn.Layer) []nn.Layer {
			return []nn.Layer{nn.NewLinear(4, 4), composite(stashing("a"), relu, nn.NewLinear(4, 4)), popping("a")}
		}},
		{"a layer of tuples", func() nn.Layer { return tupleOf(&inPlace{}) }, func(relu nn.Layer) []nn.Layer {
			return []nn.Layer{nn.NewLinear(4, 4), stashing("a"), relu, nn.NewLinear(4, 4), popping("a")}
		}},
		{"between two pops", func() nn.Layer { return nn.NewReLUInPlace() }, func(relu nn.Layer) []nn.Layer {
			only := declaring("", "a", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Pop("a") })
			return []nn.Layer{nn.NewLinear(4, 4), stashing("a"), only, relu, popping("a")}
		}},
		{"after the last pop", func() nn.Layer { return nn.NewReLUInPlace() }, func(relu nn.Layer) []nn.Layer {
			return []nn.Layer{nn.NewLinear(4, 4), stashing("a"), nn.NewLinear(4, 4), popping("a"), relu}
		}},
	} {
		t.Run(row.reason, func(t *testing.T) {
			c := torchtest.New(t, torch.Options{Grad: true})
			var got [2]map[string][]float32
			for _, grad := range []bool{true, false} {
				c.SetGrad(grad)
				for i, relu := range []nn.Layer{row.relu(), nn.NewReLU()} {
					model := nn.NewSequential(row.build(relu)...)
					nn.Materialise(c, nn.State(model), 1)
					got[i] = results(c, model, model.Forward)
					nn.Free(model)
				}
				if d := differs(got[0], got[1], 0); d != "" {
					t.Errorf("with gradients: %v: in place and not: %s", grad, d)
				}
			}
		})
	}
}

func TestInPlaceTakesNoCopyWhereNothingIsPopped(t *testing.T) {
	const activation = 4 * 1000
	for _, row := range []struct {
		reason string
		model  *nn.Sequential
		peak   int64
	}{
		{"while the skip is another tensor", nn.NewSequential(nn.NewTanh(), stashing("a"), nn.NewTanh(), nn.NewReLUInPlace(), nn.NewReLUInPlace(), popping("a")), 3},
		{"after the last pop", nn.NewSequential(nn.NewTanh(), stashing("a"), declaring("", "a", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			c.Pop("a")
			return x
		}), nn.NewReLUInPlace(), nn.NewReLUInPlace()), 1},
		{"a copy, once", nn.NewSequential(nn.NewTanh(), stashing("a"), nn.NewReLUInPlace(), nn.NewReLUInPlace(), declaring("", "a", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			return c.Add_(x, c.Pop("a"), 1)
		})), 2},
	} {
		a := newAccount(t, false)
		x := a.Ones(torch.Float32, 10, 100)
		a.start()
		row.model.Forward(nn.NewCtx(a.Ctx, nn.Config{}), x).Free()
		if a.peak() != row.peak*activation {
			t.Errorf("%s: %d bytes were live, want %d activations", row.reason, a.peak(), row.peak)
		}
	}
}

// A change that nobody declared would be in what is popped, in silence.
func TestAHiddenChangeOfASkipIsAnError(t *testing.T) {
	hidden := func() nn.Layer {
		return doing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.MulScalar_(x, 2) })
	}
	into := declaring("", "a", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		skip := c.Pop("a")
		c.NoGrad(func() { c.MulScalar_(skip, 2) })
		return c.Add(x, skip)
	})
	after := declaring("a", "", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		c.Stash("a", x)
		return c.ReLU_(x)
	})
	part := declaring("a", "", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		c.Stash("a", c.Narrow(x, 0, 1, 1))
		return x
	})
	for _, row := range []struct {
		reason, where string
		model         *nn.Sequential
	}{
		{"by the next layer", "3", nn.NewSequential(nn.NewTanh(), stashing("a"), hidden(), popping("a"))},
		{"by the layer that stashed it", "2", nn.NewSequential(nn.NewTanh(), after, popping("a"))},
		{"of the tensor that it is a view of", "3", nn.NewSequential(nn.NewTanh(), part, hidden(), popping("a"))},
		{"by a layer that popped it, before another does", "3", nn.NewSequential(nn.NewTanh(), stashing("a"), into, popping("a"))},
		{"by a child", "2.1", nn.NewSequential(nn.NewTanh(), stashing("a"), composite(hidden(), popping("a")))},
	} {
		t.Run(row.reason, func(t *testing.T) {
			for _, grad := range []bool{false, true} {
				c := nn.NewCtx(torchtest.New(t, torch.Options{Grad: grad}), nn.Config{})
				x := c.Ones(torch.Float32, 2, 3).SetRequiresGrad(grad)
				err := torch.Try(func() { row.model.Forward(c, x) })
				if err == nil || c.Path() != row.where || !strings.Contains(err.Error(), `skip "a" was overwritten in place after it was stashed; let the layer that did it declare nn.InPlace`) {
					t.Errorf("got %v at %q, want a failure at %q", err, c.Path(), row.where)
				}
			}
		})
	}
}

// A part of a model is no less careful than the whole: with what it was given, and with what it
// gives.
func TestInPlaceInAPartOfAModel(t *testing.T) {
	hidden := doing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.MulScalar_(x, 2) })
	for _, row := range []struct {
		reason string
		second nn.Layer // of the part that pops; the skip shares memory with its input
		third  nn.Layer // of the part that stashes
		want   string   // "" is a sum of relu(-1) and -1
	}{
		{"declared", nn.NewReLUInPlace(), nn.NewIdentity(), ""},
		{"hidden, after Give", hidden, nn.NewIdentity(), `skip "a" was overwritten in place`},
		{"hidden, before Take", nn.NewReLUInPlace(), doing(hidden.f), `skip "a" was overwritten in place`},
	} {
		t.Run(row.reason, func(t *testing.T) {
			c := torchtest.New(t, torch.Options{})
			model := nn.NewSequential(stashing("a"), row.third, row.second, popping("a"))
			routes, err := model.SkipRoutes()
			if err != nil {
				t.Fatal(err)
			}
			key, l := routes[0].Key, model.Layers()
			first, second := nn.NewSkipStore(routes, 0, 2), nn.NewSkipStore(routes, 2, 4)
			defer first.Free()
			defer second.Free()
			var y *torch.Tensor
			err = torch.Try(func() {
				ctx := nn.NewCtx(c, nn.Config{Skips: first})
				xs := ctx.RunNamed(l[1], ctx.RunNamed(l[0], []*torch.Tensor{torch.From(c, []float32{-1, -1})}))
				second.Give(key, first.Take(ctx, key))
				ctx = nn.NewCtx(c, nn.Config{Skips: second})
				y = ctx.RunNamed(l[3], ctx.RunNamed(l[2], xs))[0]
			})
			switch {
			case row.want != "":
				if err == nil || !strings.Contains(err.Error(), row.want) {
					t.Errorf("got %v, want %q", err, row.want)
				}
			case err != nil:
				t.Error(err)
			default:
				if got := torch.Values[float32](y); got[0] != -1 || got[1] != -1 {
					t.Errorf("relu(-1) + -1 is %v", got)
				}
			}
		})
	}
}
