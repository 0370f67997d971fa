package autoremat_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"penstock.example/autoremat"
	_ "penstock.example/internal/draws" // sets the number of draws
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/remat"
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
		m.add(nn.NewConv2d(2, 2, nn.Pair{3, 3}, nn.Conv2dConfig{Padding: nn.Pair{1, 1}}))
	case 1:
		m.add(nn.NewBatchNorm2d(2, nn.BatchNormConfig{Cumulative: i%2 == 0}))
	case 2:
		m.add(nn.NewDropout(0.4))
	case 3:
		m.add(nn.NewTanh())
	case 4:
		m.add(nn.NewSequential(nn.NewConv2d(2, 2, nn.Pair{1, 1}, nn.Conv2dConfig{}), nn.NewReLUInPlace()))
	case 5:
		m.add(nn.NewSequential(nn.NewGELU(), nn.NewSequential(nn.NewDropout(0.2), nn.NewIdentity()), nn.NewReLU()))
	case 6:
		m.add(nn.NewBasicBlock(2, 2, 1))
	case 7:
		m.add(autoremat.Atomic(nn.NewSequential(nn.NewConv2d(2, 2, nn.Pair{1, 1}, nn.Conv2dConfig{}), nn.NewTanh(), nn.NewDropout(0.2))))
	case 8:
		m.add(nn.Checkpointed(nn.NewSequential(nn.NewLinear(6, 6), nn.NewDropout(0.3), nn.NewTanh())))
	case 9:
		m.add(layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Transpose(x, 2, 3) }))
	case 10:
		m.add(layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Add(x, c.SumDim(x, []int64{1, 3}, true)) }))
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

// pop adds a layer that pops the oldest skip, and uses it twice.
func (m *network) pop() {
	name := m.open[0]
	m.open = m.open[1:]
	l := layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		s := c.Pop(name)
		return c.Tanh(c.Add(c.Mul(x, s), c.Add(x, s)))
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
		return []*torch.Tensor{c.Detach(xs[0]), xs[0], c.Argmax(xs[0], 1), xs[0], c.Tanh(xs[0])}
	}))
	m.add(tuples(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
		wide := c.Reshape(c.To(xs[2], torch.Float32), -1, 1, 6, 6)
		return []*torch.Tensor{c.Tanh(c.Add(c.Mul(c.Mul(xs[0], xs[1]), wide), c.Mul(xs[3], xs[4])))}
	}))
}

// randomOps is a complete plan of a chain: what is kept, and when, is chosen at random.
func randomOps(random *rand.Rand, n int) (ops []remat.Op) {
	emit := func(k remat.Kind, i int) { ops = append(ops, remat.Op{Kind: k, Layer: i}) }
	// part goes from x(i), which is there, through the layers to l, and back to layer i; layer n is
	// the loss.
	var part func(i, l int)
	part = func(i, l int) {
		switch {
		case i == n:
			ops = append(ops, remat.Op{Kind: remat.LossStep})
		case i == l || random.IntN(2) == 0:
			emit(remat.ForwardSave, i)
			if i < l {
				part(i+1, l)
			}
			emit(remat.Backward, i)
		default:
			j := i + 1 + random.IntN(l-i)
			emit(remat.ForwardKeep, i)
			for k := i + 1; k < j; k++ {
				emit(remat.Forward, k)
			}
			part(j, l)
			part(i, j-1)
		}
	}
	part(0, n)
	return ops
}

// TestAnyPlanIsTransparent: any plan on any model gives the bits of the model alone: outputs,
// gradients, running statistics, dropped elements.
func TestAnyPlanIsTransparent(t *testing.T) {
	torchtest.Check(t)
	rapid.Check(t, func(t *rapid.T) {
		numbers := rapid.SliceOfN(rapid.IntRange(0, kinds-1), 1, 9).Draw(t, "model")
		seed := rapid.Uint64().Draw(t, "autoremat")
		q := problem{
			model: func() *nn.Sequential { return grown(numbers) }, input: []int64{3, 2, 6, 6}, target: classes(3, 3), loss: nn.CrossEntropy(),
			inputGrad: rapid.Bool().Draw(t, "inputGrad"), retain: rapid.Bool().Draw(t, "retain"), batches: rapid.IntRange(1, 2).Draw(t, "batches"),
		}
		live := torch.LiveTensors()
		want := q.run(t, 2, plain, nil, nil)
		random := rand.New(rand.NewPCG(seed, 1))
		var ops []remat.Op
		got := q.run(t, 2, q.planned(t, autoremat.Config{Limit: 1 << 30}, func(n int) []remat.Op {
			ops = randomOps(random, n)
			return ops
		}), nil, nil)
		if d := want.differs(got); d != "" {
			t.Fatalf("%s differs; the plan is %s", d, remat.FormatOps(ops))
		}
		if n := torch.LiveTensors() - live; n != 0 {
			t.Fatalf("%d tensors were not freed; the plan is %s", n, remat.FormatOps(ops))
		}
	})
}

// Random plans are complete and allowed: what the property above is about.
func TestRandomPlans(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	seen := map[string]bool{}
	for range 300 {
		n := 1 + random.IntN(8)
		chain := remat.Chain{Layers: make([]remat.Layer, n)}
		for i := range chain.Layers {
			chain.Layers[i] = remat.Layer{Name: fmt.Sprint(i), Output: 1, Saved: 1, Gradient: 1}
		}
		ops := randomOps(random, n)
		if _, err := remat.Check(chain, ops); err != nil {
			t.Fatal(err)
		}
		seen[remat.FormatOps(ops)] = true
	}
	if len(seen) < 100 || !slices.Contains([]bool{seen["S0 L B0"]}, true) {
		t.Errorf("only %d different plans", len(seen))
	}
}

// The peak of a step is as predicted, to the byte, whatever the model and the plan.
func TestAnyPeakIsAsPredicted(t *testing.T) {
	torchtest.Check(t)
	rapid.Check(t, func(t *rapid.T) {
		numbers := rapid.SliceOfN(rapid.IntRange(0, kinds-1), 1, 9).Draw(t, "model")
		seed := rapid.Uint64().Draw(t, "autoremat")
		loss := nn.CrossEntropy()
		q := problem{
			model: func() *nn.Sequential { return grown(numbers) }, input: []int64{3, 2, 6, 6}, target: classes(3, 3), loss: loss,
			inputGrad: rapid.Bool().Draw(t, "inputGrad"), batches: rapid.IntRange(1, 2).Draw(t, "batches"),
		}
		config := autoremat.Config{Limit: 1 << 30}
		if rapid.Bool().Draw(t, "known loss") {
			config.Loss = loss
		}
		random := rand.New(rand.NewPCG(seed, 1))
		var ops []remat.Op
		q.each = func(step, batch int, w wrapped) {
			if got, want := device.Memory().Peak, w.m.Predicted(); got != want {
				t.Errorf("step %d, batch %d: the peak is %d, predicted were %d (%+d); the plan is %s", step, batch, got, want, want-got, remat.FormatOps(ops))
			}
			device.ResetPeak()
		}
		q.run(t, 3, q.planned(t, config, func(n int) []remat.Op {
			ops = randomOps(random, n)
			return ops
		}), func(int, wrapped) { device.ResetPeak() }, nil)
	})
}
