package profile_test

import (
	"bytes"
	"context"
	"testing"

	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/profile"
	"penstock.example/torch"
)

// layer is a layer made of a function, with or without a module inside.
type layer struct {
	nn.Base
	forward func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor
}

func (l *layer) ForwardTuple(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor { return l.forward(c, xs) }

func do(forward func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor) nn.Layer {
	l := &layer{forward: forward}
	return nn.Tuple(l, l.ForwardTuple)
}

func one(forward func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor) nn.Layer {
	return do(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
		return []*torch.Tensor{forward(c, xs[0])}
	})
}

// stasher hands its input on as it is, and to whoever pops the name.
func stasher(name string) nn.Layer {
	l := &layer{forward: func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
		c.Stash(name, xs[0])
		return xs
	}}
	l.Stashes(name)
	return nn.Tuple(l, l.ForwardTuple)
}

// popper joins its input with what was stashed.
func popper(name string, join func(c *nn.Ctx, x, skip *torch.Tensor) *torch.Tensor) nn.Layer {
	l := &layer{forward: func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
		return []*torch.Tensor{join(c, xs[0], c.Pop(name))}
	}}
	l.Pops(name)
	return nn.Tuple(l, l.ForwardTuple)
}

func cat(c *nn.Ctx, x, skip *torch.Tensor) *torch.Tensor { return c.Cat([]*torch.Tensor{x, skip}, -1) }
func mul(c *nn.Ctx, x, skip *torch.Tensor) *torch.Tensor { return c.Mul(x, skip) }

// networks have every way in which a layer holds memory: what it saves is its input, its output,
// something of its own, nothing, or memory of other layers.
var networks = []struct {
	name  string
	build func() *nn.Sequential
	input func(c *torch.Ctx) *torch.Tensor
}{
	{"mlp", func() *nn.Sequential {
		return nn.NewSequential(nn.NewLinear(16, 24), nn.NewReLU(), nn.NewLinear(24, 8), nn.NewGELU(),
			nn.NewLinear(8, 8), nn.NewTanh())
	}, vectors},
	{"views, in place, dropout", func() *nn.Sequential {
		return nn.NewSequential(
			nn.NewConv2d(2, 4, nn.Square(3), nn.ConvConfig{Padding: nn.Square(1)}), nn.NewBatchNorm2d(4,
				nn.BatchNormConfig{}), nn.NewReLUInPlace(),
			nn.NewFlatten(1, -1), nn.NewLinear(4*36, 12), nn.NewDropout(0.3), nn.NewReLUInPlace(),
			one(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.MulScalar(x, 2) }),
			one(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				return c.Narrow(x, 1, 0, 6)
			}), nn.NewLinear(6, 3), nn.NewReLUInPlace(),
		)
	}, images},
	{"tokens", func() *nn.Sequential {
		return nn.NewSequential(nn.NewEmbedding(11, 8, nn.EmbeddingConfig{}),
			nn.NewLayerNorm([]int64{8}, nn.NormConfig{}), nn.NewLinear(8, 11))
	}, tokens},
	{"tuples", func() *nn.Sequential {
		pair := func() nn.Layer {
			return do(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
				return []*torch.Tensor{xs[0], xs[0]}
			})
		}
		swap := func() nn.Layer {
			return do(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
				return []*torch.Tensor{c.Mul(xs[0], xs[1]), xs[0]}
			})
		}
		add := func() nn.Layer {
			return do(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor { return []*torch.Tensor{c.Add(xs[0], xs[1])} })
		}
		halves := do(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
			return c.Call("aten::split.Tensor", xs[0], 8, 1)[0].([]*torch.Tensor)
		})
		return nn.NewSequential(nn.NewLinear(16, 16), pair(), swap(), add(), halves, swap(), add(),
			nn.NewLinear(8, 2))
	}, vectors},
	{"skips", func() *nn.Sequential {
		return nn.NewSequential(nn.NewLinear(16, 16), stasher("outer"), nn.NewTanh(), stasher("inner"),
			nn.NewLinear(16, 16),
			popper("inner", mul), popper("outer", cat), nn.NewLinear(32, 4))
	}, vectors},
	{"tied parameters", func() *nn.Sequential {
		e := nn.NewEmbedding(11, 8, nn.EmbeddingConfig{})
		return nn.NewSequential(e, nn.NewTanh(), nn.NewLinearShared(e.Weight, true), nn.NewLinear(11, 8),
			nn.NewLinearShared(e.Weight, false))
	}, tokens},
	{"nothing to train before", func() *nn.Sequential {
		return nn.NewSequential(one(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			return c.MulScalar(x, 3)
		}), nn.NewReLU(), nn.NewLinear(16, 4))
	}, vectors},
}

func vectors(c *torch.Ctx) *torch.Tensor { return c.Normal_(c.Empty(torch.Float32, 6, 16), 0, 1) }
func images(c *torch.Ctx) *torch.Tensor  { return c.Normal_(c.Empty(torch.Float32, 6, 2, 6, 6), 0, 1) }
func tokens(c *torch.Ctx) *torch.Tensor {
	values := make([]int64, 6*5)
	for i := range values {
		values[i] = int64(i % 11)
	}
	return torch.From(c, values, 6, 5)
}

// newCtx checks for leaks and returns a context on the CPU.
func newCtx(t *testing.T) *torch.Ctx {
	t.Helper()
	torchtest.Check(t)
	c := torch.NewCtx(torch.Options{Seed: 3, Threads: 1})
	t.Cleanup(c.Close)
	return c
}

// deviceCtx is newCtx on the first device for tests.
func deviceCtx(t *testing.T) *torch.Ctx {
	t.Helper()
	return torchtest.New(t, torch.Options{Seed: 3})
}

func measured(t *testing.T, model *nn.Sequential, config profile.Config,
	sample ...*torch.Tensor) profile.Profile {
	t.Helper()
	return must.Get(profile.Measure(context.Background(), model, config, sample...))(t)
}

// state is every parameter, buffer and gradient of a model.
func state(model *nn.Sequential) map[string][]byte {
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	values := map[string][]byte{}
	for _, s := range nn.State(model) {
		values[s.Name] = torch.Bytes(s.Tensor())
		if g := c.GradOf(s.Tensor()); g != nil {
			values["gradient of "+s.Name] = torch.Bytes(g)
		}
	}
	return values
}

func compare(t *testing.T, what string, want, got map[string][]byte) {
	t.Helper()
	if len(want) != len(got) {
		t.Errorf("%s: %d tensors before, %d after", what, len(want), len(got))
	}
	for name := range want {
		if !bytes.Equal(want[name], got[name]) {
			t.Errorf("%s changed %s", what, name)
		}
	}
}
