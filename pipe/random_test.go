package pipe_test

import (
	"fmt"
	"slices"

	"pgregory.net/rapid"

	"penstock.example/nn"
	"penstock.example/torch"
)

// kindCount is how many numbers randomModel knows. From gapped on they are tensors with gaps, between layers.
const (
	gapped    = 33
	kindCount = gapped + gapCount*sensitiveCount
)

// anyKind draws one of them.
var anyKind = rapid.OneOf(rapid.IntRange(0, gapped-1), rapid.IntRange(0, gapped-1), rapid.IntRange(gapped, kindCount-1))

// randomModel makes a network of [rows, 2, 6, 6] to 3 classes out of numbers. Some of its layers
// are wrapped by wrap.
func randomModel(kinds []int, wrap func(nn.Layer) nn.Layer) *nn.Sequential {
	m := &randomNet{Sequential: nn.NewSequential(), wrap: wrap}
	for i, k := range kinds {
		m.grow(i, k)
	}
	for len(m.unpopped) > 0 {
		m.pop(0)
	}
	m.add(nn.NewFlatten(1, -1))
	m.add(nn.NewLinear(72, 3))
	return m.Sequential
}

type randomNet struct {
	*nn.Sequential
	skips    []string
	unpopped []string
	weight   *nn.Param // to share
	wrap     func(nn.Layer) nn.Layer
	wrapNext bool
	last     nn.Layer // without its wrap
}

func (m *randomNet) add(l nn.Layer) {
	m.last = l
	if m.wrapNext {
		l, m.wrapNext = m.wrap(l), false
	}
	m.Add(fmt.Sprintf("l%d", m.Len()), l)
}

func unwrapped(l nn.Layer) nn.Layer { return l }

func (m *randomNet) grow(i, k int) {
	image := layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Reshape(x, -1, 2, 6, 6) })
	switch k {
	case 0:
		m.add(nn.NewConv2d(2, 2, nn.Pair{3, 3}, nn.Conv2dConfig{Padding: nn.Pair{1, 1}, Groups: 2}))
	case 1:
		m.add(nn.NewBatchNorm2d(2, nn.BatchNormConfig{Cumulative: i%2 == 0}))
	case 2:
		m.add(nn.NewReLU())
	case 3:
		m.add(nn.NewSequential(nn.NewConv2d(2, 2, nn.Pair{1, 1}, nn.Conv2dConfig{}), nn.NewReLUInPlace()))
	case 4:
		m.add(nn.NewDropout(0.4))
	case 5:
		m.add(nn.NewTanh())
	case 6:
		m.add(nn.NewSequential(nn.NewGELU(), nn.NewSequential(nn.NewDropout(0.2), nn.NewIdentity())))
	case 7:
		m.add(nn.NewBasicBlock(2, 2, 1))
	case 8:
		m.add(nn.NewLayerNorm([]int64{2, 6, 6}, nn.LayerNormConfig{}))
	case 9:
		m.add(nn.NewConv2d(2, 2, nn.Pair{1, 1}, nn.Conv2dConfig{}))
	case 10:
		m.add(nn.NewSigmoid())
	case 11:
		m.add(nn.NewLinear(6, 6))
	case 12:
		m.add(layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Transpose(x, 2, 3) }))
	case 13:
		m.add(layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Add(x, c.SumDim(x, []int64{1, 3}, true)) }))
	case 14:
		m.add(nn.NewSequential(nn.NewUpsample(nn.UpsampleConfig{Scale: [2]float64{2, 2}}),
			nn.NewMaxPool2d(nn.Square(2), nn.MaxPool2dConfig{})))
	case 15:
		m.add(nn.NewAvgPool2d(nn.Square(3), nn.AvgPool2dConfig{Stride: nn.Square(1), Padding: nn.Square(1)}))
	case 16:
		m.add(nn.NewSoftmax(1))
	case 17:
		m.add(nn.NewSequential(nn.NewFlatten(2, -1), nn.NewTransformerBlock(36, 4, nn.TransformerConfig{Dropout: 0.1}),
			image))
	case 18, 19:
		m.stash(k == 19)
	case 20:
		if len(m.skips) > 0 {
			m.pop(i % len(m.skips))
		}
	case 21:
		m.tie()
	case 22:
		m.tuples()
	case 23:
		m.wrapNext = true
	case 24:
		m.freeze()
	case 25:
		m.add(nn.NewSequential(nn.NewConvTranspose2d(2, 2, nn.Square(2), nn.ConvTranspose2dConfig{Stride: nn.Square(2)}),
			nn.NewAvgPool2d(nn.Square(2), nn.AvgPool2dConfig{})))
	case 26:
		m.add(nn.NewSequential(nn.NewFlatten(2, -1), nn.NewConv1d(2, 2, 3, nn.Conv1dConfig{Padding: 1, Groups: 2}), image))
	case 27:
		m.add(nn.NewGroupNorm(1, 2, nn.GroupNormConfig{}))
	case 28:
		m.add(nn.NewRMSNorm([]int64{6, 6}, nn.RMSNormConfig{Eps: 1e-3}))
	case 29:
		m.add(nn.NewSiLU())
	case 30:
		m.add(nn.NewSequential(nn.NewFlatten(2, -1), nn.NewSelfAttention(36, 3, nn.NoMask), image))
	case 31:
		m.add(nn.NewSequential().Add("", nn.NewLinearTransposed(6, 6)).Add("two", nn.NewLinearTransposed(6, 6)))
	case 32:
		m.add(nn.NewFlatten(2, -1))
		m.add(tuples(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
			return append(xs[:1:1], c.Triu(c.Ones(torch.Bool, xs[0].Size(0), 2, 2), 1))
		}))
		m.add(nn.NewSelfAttention(36, 4, nn.GivenMask))
		m.add(tuples(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
			return []*torch.Tensor{c.Reshape(xs[0], -1, 2, 6, 6)}
		}))
	default:
		k -= gapped
		m.add(sensitive((k + i) % sensitiveCount))
		m.gap(k / sensitiveCount)
		m.add(sensitive(k % sensitiveCount))
	}
}

// stash adds a layer that stashes its input, or something that it has made from it.
func (m *randomNet) stash(made bool) {
	name := fmt.Sprintf("skip%d", len(m.skips))
	m.skips, m.unpopped = append(m.skips, name), append(m.unpopped, name)
	l := layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		if made {
			y := c.Tanh(x)
			c.Stash(name, y)
			return c.Mul(y, x)
		}
		c.Stash(name, x)
		return x
	})
	l.Stashes(name)
	m.add(l)
}

// pop adds a layer that pops a skip, which others may pop too, and uses it more than once.
func (m *randomNet) pop(i int) {
	name := m.skips[i]
	if i == 0 && len(m.unpopped) > 0 {
		name = m.unpopped[0]
	}
	m.unpopped = slices.DeleteFunc(m.unpopped, func(s string) bool { return s == name })
	l := layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		skip := c.Pop(name)
		return c.Tanh(c.Add(c.Mul(x, skip), c.Add(x, skip)))
	})
	l.Pops(name)
	m.add(l)
}

// tie adds a layer whose weight is that of others. It is not wrapped: the sum of the weight's
// gradients would be grouped otherwise.
func (m *randomNet) tie() {
	m.wrapNext = false
	l := &call{}
	if m.weight == nil {
		l.p = l.Param("weight", nn.FanIn(6), 6, 6)
		m.weight = l.p
	} else {
		l.p = l.Share("weight", m.weight)
	}
	twice := m.Len()%2 == 1
	l.f = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		y := c.PlainLinear(x, l.p.Tensor(), nil)
		if twice {
			y = c.PlainLinear(c.Tanh(y), l.p.Tensor(), nil)
		}
		return y
	}
	m.add(l)
}

// freeze makes the parameters of what was added last constants, whether it is wrapped or not.
func (m *randomNet) freeze() {
	if m.last == nil {
		return
	}
	for _, p := range nn.Params(m.last) {
		p.Freeze()
	}
}

// tuples adds layers between which a tuple goes: one without a gradient before those with one,
// integers, and one tensor twice.
func (m *randomNet) tuples() {
	m.add(tuples(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
		return []*torch.Tensor{c.Detach(xs[0]), xs[0], c.Argmax(xs[0], 1), xs[0], c.Tanh(xs[0])}
	}))
	m.add(tuples(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
		return []*torch.Tensor{c.Mul(xs[0], xs[1]), xs[2], c.Add(c.Mul(xs[3], xs[4]), xs[3]), xs[4]}
	}))
	m.add(tuples(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
		wide := c.Reshape(c.To(xs[1], torch.Float32), -1, 1, 6, 6)
		return []*torch.Tensor{c.Tanh(c.Add(c.Add(c.Mul(xs[0], wide), xs[2]), xs[3]))}
	}))
}

// tupled makes a layer of tuples of a function.
type tupled struct {
	nn.Base
	f func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor
}

func (l *tupled) ForwardTuple(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor { return l.f(c, xs) }
