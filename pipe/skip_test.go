package pipe_test

import (
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/torch"
)

// What a skip may be, on every balance, with every policy: losses, gradients of each parameter and
// of the input are the plain loop's.
func TestSkips(t *testing.T) {
	torchtest.Check(t)
	conv := func() *nn.Conv2d { return nn.NewConv2d(2, 2, nn.Square(1), nn.Conv2dConfig{}) }
	images := trial{rows: 5, inputs: wanted(normal(5, 2, 3, 3)), targets: one(normal(5, 2, 3, 3)), loss: squares{}}
	tokens := trial{rows: 5, inputs: one(classes(5, 7)), targets: one(normal(5, 4)), loss: squares{}}
	add := func(names ...string) nn.Layer {
		return popping(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			for _, n := range names {
				x = c.Add(c.Tanh(x), c.Pop(n))
			}
			return x
		}, names...)
	}
	stash := func(names ...string) nn.Layer {
		return stashing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			for _, n := range names {
				x = c.Tanh(x)
				c.Stash(n, x)
			}
			return x
		}, names...)
	}
	isolated := func(space nn.Namespace, layers ...*call) (out []nn.Layer) {
		for _, l := range layers {
			l.Isolate(space)
			out = append(out, l)
		}
		return out
	}
	for _, row := range []struct {
		name  string
		data  trial
		model func() *nn.Sequential
	}{
		{"from the first of three layers to the last", images, func() *nn.Sequential {
			// Each has a convolution before what it does with the skip.
			first := stashing(nil, "1to3")
			in := conv()
			first.Child("conv", in)
			first.f = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { c.Stash("1to3", x); return c.Run(x, in) }
			last := popping(nil, "1to3")
			out := conv()
			last.Child("conv", out)
			last.f = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Add(c.Run(x, out), c.Pop("1to3")) }
			return nn.NewSequential(first, conv(), last)
		}},
		{"to several layers and stages", images, func() *nn.Sequential {
			return nn.NewSequential(conv(), stash("a"), add("a"), conv(), add("a"), add("a"))
		}},
		{"crossing each other", images, func() *nn.Sequential {
			return nn.NewSequential(stash("a", "b"), stash("c"), conv(), add("b", "c"), add("a"))
		}},
		{"inside each other, in nested layers", images, func() *nn.Sequential {
			return nn.NewSequential(nn.NewSequential(stash("a"), conv()),
				nn.NewSequential(stash("b"), nn.NewSequential(conv(), add("b"))), add("a"))
		}},
		{"of one name in two namespaces", images, func() *nn.Sequential {
			one, two := nn.NewNamespace(), nn.NewNamespace()
			block := func(space nn.Namespace) []nn.Layer {
				return isolated(space, stash("skip").(*call), add("skip").(*call))
			}
			a, b := block(one), block(two)
			return nn.NewSequential(a[0], b[0], conv(), a[1], b[1])
		}},
		{"absent for every other micro-batch", images, func() *nn.Sequential {
			return nn.NewSequential(conv(), stashing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				if c.MicroBatch%2 == 0 {
					c.Stash("a", x)
				} else {
					c.Stash("a", nil)
				}
				return c.Tanh(x)
			}, "a"), conv(), popping(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				skip := c.Pop("a")
				if (skip == nil) != (c.MicroBatch%2 == 1) {
					panic("the skip of another micro-batch")
				}
				if skip == nil {
					return x
				}
				return c.Mul(x, skip)
			}, "a"))
		}},
		{"absent for all", images, func() *nn.Sequential {
			return nn.NewSequential(conv(), stashing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { c.Stash("a", nil); return x }, "a"), conv(),
				popping(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { c.Pop("a"); return c.Tanh(x) }, "a"))
		}},
		{"popped and not used", images, func() *nn.Sequential {
			return nn.NewSequential(conv(), stash("a"), conv(),
				popping(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { c.Pop("a"); return c.Tanh(x) }, "a"))
		}},
		{"of integers", images, func() *nn.Sequential {
			return nn.NewSequential(conv(), stashing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { c.Stash("largest", c.Argmax(x, 1)); return x }, "largest"), conv(),
				popping(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
					return c.Mul(x, c.Reshape(c.To(c.Pop("largest"), torch.Float32), -1, 1, 3, 3))
				}, "largest"))
		}},
		{"detached", images, func() *nn.Sequential {
			return nn.NewSequential(conv(), stashing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { c.Stash("a", c.Detach(x)); return x }, "a"), conv(), add("a"))
		}},
		{"of the batch itself, past an embedding", tokens, func() *nn.Sequential {
			again := popping(nil, "tokens")
			second := nn.NewEmbedding(7, 4, nn.EmbeddingConfig{})
			again.Child("embedding", second)
			again.f = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				return c.Mul(c.Tanh(x), c.Run(c.Pop("tokens"), second))
			}
			return nn.NewSequential(stashing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { c.Stash("tokens", x); return x }, "tokens"),
				nn.NewEmbedding(7, 4, nn.EmbeddingConfig{}), nn.NewLinear(4, 4), again)
		}},
		{"around an embedding that is used twice", tokens, func() *nn.Sequential {
			e := nn.NewEmbedding(7, 4, nn.EmbeddingConfig{})
			out := popping(nil, "vectors")
			w := out.Share("weight", e.Weight)
			out.f = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				return c.Matmul(c.PlainLinear(c.Add(x, c.Pop("vectors")), w.Tensor(), nil), w.Tensor())
			}
			return nn.NewSequential(e, stashing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { c.Stash("vectors", x); return x }, "vectors"), nn.NewTanh(), out)
		}},
		{"beside layers that overwrite", images, func() *nn.Sequential {
			return nn.NewSequential(conv(), stash("a"), nn.NewReLUInPlace(), conv(), add("a"), nn.NewReLUInPlace())
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			torchtest.Check(t)
			q := row.data
			q.model = row.model
			q.check(t, 3)
		})
	}
}

func count(list []string, s string) (n int) {
	for _, v := range list {
		if v == s {
			n++
		}
	}
	return n
}
