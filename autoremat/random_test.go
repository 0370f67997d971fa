package autoremat_test

import (
	"fmt"
	"testing"

	"penstock.example/autoremat"
	_ "penstock.example/internal/draws" // sets the number of draws
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/torch"
	"pgregory.net/rapid"
)

// network grows a random model of [rows, 2, 6, 6] to [rows, 3].
type network struct {
	*nn.Sequential
	open   []string // skips that are stashed and not popped
	stash  int
	weight *nn.Param // to share
}

// kinds of what can be added to a network.
const kinds = 16

func grown(numbers []int) *nn.Sequential {
	m := &network{Sequential: nn.NewSequential()}
	for i, k := range numbers {
		m.grow(i, k)
	}
	for len(m.open) > 0 {
		m.pop()
	}
	m.add(nn.NewFlatten(1, -1))
	m.add(nn.NewLinear(72, 3))
	return m.Sequential
}

func (m *network) add(l nn.Layer) { m.Add(fmt.Sprintf("l%d", m.Len()), l) }

func (m *network) grow(i, k int) {
	switch k {
	case 0:
		m.add(nn.NewConv2d(2, 2, nn.Pair{3, 3}, nn.ConvConfig{Padding: nn.Pair{1, 1}}))
	case 1:
		m.add(nn.NewBatchNorm2d(2, nn.BatchNormConfig{}))
	case 2:
		m.add(nn.NewDropout(0.4))
	case 3:
		m.add(nn.NewTanh())
	case 4:
		m.add(nn.NewSequential(nn.NewConv2d(2, 2, nn.Pair{1, 1}, nn.ConvConfig{}), nn.NewReLUInPlace()))
	case 5:
		m.add(nn.NewSequential(nn.NewGELU(), nn.NewSequential(nn.NewDropout(0.2), nn.NewIdentity()),
			nn.NewReLU()))
	case 6:
		m.add(autoremat.Atomic(nn.NewBasicBlock(2, 2, 1)))
	case 7:
		m.add(autoremat.Atomic(nn.NewSequential(nn.NewConv2d(2, 2, nn.Pair{1, 1}, nn.ConvConfig{}),
			nn.NewTanh(), nn.NewDropout(0.2))))
	case 8:
		m.add(nn.Checkpointed(nn.NewSequential(nn.NewLinear(6, 6), nn.NewDropout(0.3), nn.NewTanh())))
	case 9:
		m.add(layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Transpose(x, 2, 3) }))
	case 10:
		m.add(layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			return c.Add(x, c.Op("aten::sum.dim_IntList", x, []int64{1, 3}, true))
		}))
	case 11, 12:
		m.push(k == 12)
	case 13:
		if len(m.open) > 0 {
			m.pop()
		}
	case 14:
		m.tie()
	case 15:
		m.tuples()
	}
}

// push adds a layer that stashes its input, or something that it makes of it.
func (m *network) push(makes bool) {
	name := fmt.Sprintf("skip%d", m.stash)
	m.stash++
	m.open = append(m.open, name)
	l := layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		if makes {
			y := c.Op("aten::tanh", x)
			c.Stash(name, y)
			return c.Mul(y, x)
		}
		c.Stash(name, x)
		return x
	})
	l.Stashes(name)
	m.add(l)
}

// pop adds a layer that pops the oldest skip, and uses it twice.
func (m *network) pop() {
	name := m.open[0]
	m.open = m.open[1:]
	l := layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		s := c.Pop(name)
		return c.Op("aten::tanh", c.Add(c.Mul(x, s), c.Add(x, s)))
	})
	l.Pops(name)
	m.add(l)
}

// tie adds a layer whose weight is that of others.
func (m *network) tie() {
	l := &lambda{}
	var p *nn.Param
	if m.weight == nil {
		p = l.Param("weight", nn.FanIn(6), 6, 6)
		m.weight = p
	} else {
		p = l.Share("weight", m.weight)
	}
	l.f = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.PlainLinear(x, p.Tensor(), nil) }
	m.add(l)
}

// tuples adds layers between which goes a tuple: with a gradient and without, of integers, and one
// tensor twice.
func (m *network) tuples() {
	m.add(tuples(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
		return []*torch.Tensor{c.Detach(xs[0]), xs[0], c.Argmax(xs[0], 1), xs[0], c.Op("aten::tanh", xs[0])}
	}))
	m.add(tuples(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
		wide := c.Reshape(c.To(xs[2], torch.Float32), -1, 1, 6, 6)
		return []*torch.Tensor{c.Op("aten::tanh", c.Add(c.Mul(c.Mul(xs[0], xs[1]), wide), c.Mul(xs[3], xs[4])))}
	}))
}

// Under any limit, any model gives the bits of the model alone: outputs, gradients, running statistics,
// dropped elements. It takes no more than is predicted.
func TestAnyModelIsItself(t *testing.T) {
	torchtest.Check(t)
	rapid.Check(t, func(t *rapid.T) {
		numbers := rapid.SliceOfN(rapid.IntRange(0, kinds-1), 1, 9).Draw(t, "model")
		q := problem{
			model: func() *nn.Sequential { return grown(numbers) }, input: []int64{3, 2, 6,
				6}, target: classes(3, 3), loss: nn.CrossEntropy(),
			inputGrad: rapid.Bool().Draw(t, "inputGrad"), retain: rapid.Bool().Draw(t,
				"retain"), batches: rapid.IntRange(1, 2).Draw(t, "batches"),
		}
		live, limit := torch.LiveTensors(), int64(1<<30)
		want := q.run(t, 2, plain, nil, nil)
		if !q.retain && q.batches == 1 && rapid.Bool().Draw(t, "tight") { // which others leave memory for
			limit = q.least(t)
		}
		got := q.run(t, 2, under(t, limit, nil), func(int, wrapped) { device.ResetPeak() },
			func(step int, w wrapped) {
				if peak := device.Memory().Peak; !q.retain && (peak > w.m.Predicted() || peak > limit) {
					t.Errorf("limit %d, step %d: the peak is %d, predicted were %d", limit, step, peak,
						w.m.Predicted())
				}
			})
		if d := want.differs(got); d != "" {
			t.Fatalf("limit %d: %s differs", limit, d)
		}
		if n := torch.LiveTensors() - live; n != 0 {
			t.Fatalf("limit %d: %d tensors were not freed", limit, n)
		}
	})
}
