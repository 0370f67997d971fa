package pipe_test

import (
	"fmt"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// sensitiveCount is how many layers sensitive knows.
const sensitiveCount = 16

// sensitive makes a layer of [rows, 2, 6, 6] that libtorch computes by other loops, to other last bits,
// where its input or the gradient of its output has gaps.
func sensitive(k int) nn.Layer {
	return []func() nn.Layer{
		func() nn.Layer { return nn.NewTanh() },
		func() nn.Layer { return nn.NewSiLU() },
		func() nn.Layer { return nn.NewGELU() },
		func() nn.Layer { return nn.NewGELUTanh() },
		func() nn.Layer { return nn.NewBatchNorm2d(2, nn.BatchNormConfig{}) },
		func() nn.Layer { return nn.NewLayerNorm([]int64{6}, nn.LayerNormConfig{}) },
		func() nn.Layer { return nn.NewLayerNorm([]int64{2, 6, 6}, nn.LayerNormConfig{}) },
		func() nn.Layer { return nn.NewSoftmax(3) },
		func() nn.Layer { return nn.NewLogSoftmax(1) },
		func() nn.Layer { return nn.NewGroupNorm(1, 2, nn.GroupNormConfig{}) },
		func() nn.Layer { return nn.NewInstanceNorm2d(2, nn.InstanceNormConfig{}) },
		func() nn.Layer { return nn.NewRMSNorm([]int64{6}, nn.RMSNormConfig{Eps: 1e-3}) },
		func() nn.Layer { return nn.NewSigmoid() },
		func() nn.Layer { return nn.NewLinear(6, 6) },
		func() nn.Layer { return nn.NewConv2d(2, 2, nn.Square(3), nn.Conv2dConfig{Padding: nn.Square(1)}) },
		func() nn.Layer {
			return nn.NewAvgPool2d(nn.Square(3), nn.AvgPool2dConfig{Stride: nn.Square(1), Padding: nn.Square(1)})
		},
	}[k]()
}

// gapCount is how many layers gap knows.
const gapCount = 11

// gap adds layers of [rows, 2, 6, 6] with gaps in the memory of what they give, or of the gradient of
// their input.
func (m *randomNet) gap(k int) {
	beside := func(c *nn.Ctx, x *torch.Tensor, dim int64) *torch.Tensor {
		return c.Cat([]*torch.Tensor{x, c.Detach(c.Tanh(x))}, dim)
	}
	part := func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Narrow(beside(c, x, 3), 3, 3, 6) }
	interleaved := func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { // every second column
		wide := c.Reshape(beside(c, x, 3), -1, 2, 6, 6, 2)
		return c.Reshape(c.Narrow(wide, 4, 1, 1), -1, 2, 6, 6)
	}
	one := func(f func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor) { m.add(layer(f)) }
	switch k {
	case 0:
		one(part)
	case 1: // and in another order
		one(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Transpose(part(c, x), 2, 3) })
	case 2:
		one(interleaved)
	case 3: // of channels
		one(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Narrow(beside(c, x, 1), 1, 1, 2) })
	case 4: // one column in all places
		one(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			return c.Expand(c.Narrow(c.Mul(x, x), 3, 2, 1), x.Size(0), 2, 6, 6)
		})
	case 5: // of the gradient alone: that of each part of a Cat
		one(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			both := c.Tanh(beside(c, x, 3))
			return c.Mul(c.Narrow(both, 3, 0, 6), c.Narrow(both, 3, 6, 6))
		})
	case 6: // likewise, of what is padded
		one(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			return c.Reshape(c.Narrow(c.Pad(x, []int64{1, 1, 0, 0}, 0.5), 3, 1, 6), -1, 2, 6, 6)
		})
	case 7: // likewise, of two uses
		one(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			both := c.Cat([]*torch.Tensor{x, c.Tanh(x), c.Transpose(x, 2, 3)}, 3)
			return c.Narrow(c.SiLU(both), 3, 5, 6)
		})
	case 8: // of the elements of a tuple, of which one stands there twice
		m.add(tuples(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
			y := part(c, xs[0])
			return []*torch.Tensor{y, interleaved(c, xs[0]), y, xs[0]}
		}))
		m.add(tuples(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
			return []*torch.Tensor{c.SiLU(xs[0]), part(c, xs[1]), c.Cat([]*torch.Tensor{xs[2], xs[3]}, 3)}
		}))
		m.add(tuples(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
			return []*torch.Tensor{c.Add(c.Mul(c.SiLU(xs[0]), c.SiLU(xs[1])), c.Narrow(c.SiLU(xs[2]), 3, 2, 6))}
		}))
	case 9, 10: // of a skip, and of its gradient; all in one layer or with others between
		name := fmt.Sprintf("gaps%d", m.Len())
		stash := layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			c.Stash(name, part(c, x))
			return interleaved(c, x)
		})
		stash.Stashes(name)
		m.add(stash)
		for range 2*k - 17 {
			pop := layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				skip := c.Pop(name)
				return c.Add(c.SiLU(c.Add(x, c.SiLU(skip))), part(c, skip))
			})
			pop.Pops(name)
			m.add(pop)
			m.add(nn.NewSiLU())
		}
	}
}

// Tensors and gradients with gaps in their memory, between layers that libtorch computes otherwise then,
// give the bits of the plain loop behind every cut.
func TestGapsGiveTheSameBitsBehindEveryCut(t *testing.T) {
	torchtest.Check(t)
	for k := gapped; k < kindCount; k++ {
		for _, autocast := range []torch.Autocast{torch.AutocastOff, torch.AutocastBFloat16} {
			q := problem{
				model: func() *nn.Sequential { return randomModel([]int{5, k}, unwrapped) }, rows: 3, steps: 1,
				loss: nn.CrossEntropy(), input: normal(3, 2, 6, 6), target: classes(3, 3), autocast: autocast,
			}
			want := q.plain(1, 1)
			layers := len(q.model().Layers())
			for cut := 1; cut < layers; cut++ {
				if d := want.differs(q.piped(t, pipe.Config{Balance: []int{cut, layers - cut}, Chunks: 1, Seed: 1, Autocast: autocast})); d != "" {
					t.Errorf("gap %d, layer %d, autocast %v, cut at %d: %s differs from the plain loop", (k-gapped)/sensitiveCount, (k-gapped)%sensitiveCount, autocast, cut, d)
				}
			}
		}
	}
}

// A gradient that is expanded and has gaps joins others of the same tensor: the layout of their sum, and so
// the bits of what comes before, is the same with a cut between its uses.
func TestAnExpandedGradientWithGapsJoinsOthers(t *testing.T) {
	torchtest.Check(t)
	q := problem{
		model: func() *nn.Sequential {
			return nn.NewSequential(nn.NewLinear(6, 6), nn.NewSiLU(),
				tuples(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
					return []*torch.Tensor{xs[0], c.SiLU(c.Contiguous(c.Transpose(xs[0], 1, 2)))}
				}),
				tuples(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
					both := c.Cat([]*torch.Tensor{xs[0], c.Detach(c.Narrow(xs[0], 2, 0, 4))}, 2)
					return []*torch.Tensor{c.Add(c.Narrow(c.SumDim(both, []int64{1}, true), 2, 0, 6), c.Reshape(xs[1], -1, 4, 6))}
				}),
				nn.NewFlatten(1, -1), nn.NewLinear(24, 3))
		},
		rows: 3, steps: 1, loss: nn.CrossEntropy(), input: normal(3, 4, 6), target: classes(3, 3),
	}
	for seed := range uint64(5) {
		want := q.plain(1, seed)
		for cut := 1; cut < 6; cut++ {
			if d := want.differs(q.piped(t, pipe.Config{Balance: []int{cut, 6 - cut}, Chunks: 1, Seed: seed})); d != "" {
				t.Errorf("seed %d, cut at %d: %s differs from the plain loop", seed, cut, d)
			}
		}
	}
}
