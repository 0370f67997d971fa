package engine_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	_ "penstock.example/internal/draws" // sets the number of draws
	"penstock.example/internal/engine"
	"penstock.example/internal/torchtest"
	"penstock.example/torch"
)

// The gradient is left as it came: an expanded one takes the memory of one number, not of the
// tensor.
func TestGateLeavesTheGradientAsItCame(t *testing.T) {
	c := torchtest.New(t, torch.Options{Device: torchtest.Device(2), Grad: true})
	m, x := engine.Mailbox(c), c.Ones(torch.Float32, 100, 10)
	x.SetRequiresGrad(true)
	y := engine.Gate(c, m, x)
	if a, _ := x.Storage(); y.String() != x.String() {
		t.Errorf("the gate gives %v", y)
	} else if b, _ := y.Storage(); a != b {
		t.Error("the gate has memory of its own")
	}
	z := c.Sum(y)
	c.Backward([]*torch.Tensor{z}, []*torch.Tensor{nil}, true)
	g := c.GradOf(m)
	if _, bytes := g.Storage(); g.String() != "float32[100,10]" || bytes != 4 {
		t.Errorf("got %v of %d bytes, want the gradient of the sum: one number, expanded", g, bytes)
	}
	if x.HasGrad() {
		t.Error("the gradient went on to the value")
	}
	c.Backward([]*torch.Tensor{z}, []*torch.Tensor{nil}, false)
	if got := torch.Values[float32](c.GradOf(m)); got[0] != 1 {
		t.Errorf("a second backward leaves %v, want it afresh: 1", got[0])
	}
	if err := torch.Try(func() {
		c.Backward([]*torch.Tensor{z}, []*torch.Tensor{nil}, false)
	}); err == nil || !strings.Contains(err.Error(), "second time") {
		t.Errorf("a backward without its graph: %v", err)
	}
	m.SetGradOf(nil)

	box := engine.Gate(c, x, x) // the value as its own mailbox
	c.Backward([]*torch.Tensor{c.Sum(box)}, []*torch.Tensor{nil}, false)
	if got := torch.Values[float32](c.GradOf(x)); len(got) != 1000 || got[0] != 1 {
		t.Errorf("%d numbers", len(got))
	}
	x.SetGradOf(nil)
	c.NoGrad(func() {
		if engine.Gate(c, m, x).RequiresGrad() {
			t.Error("a gate without a graph needs a gradient")
		}
	})
}

// The graph of a gate holds what its operators need, and addition needs nothing.
func TestGateHoldsNoValue(t *testing.T) {
	c := torchtest.New(t, torch.Options{Device: torchtest.Device(2), Grad: true})
	m, x := engine.Mailbox(c), c.Ones(torch.Float32, 1000)
	gate := engine.Gate(c, m, x)
	y := c.Op("aten::add.Scalar", gate, 1)
	live := torchtest.Device(2).Memory().Live
	x.Free()
	gate.Free()
	if freed := live - torchtest.Device(2).Memory().Live; freed != 4000 {
		t.Errorf("%d of 4000 bytes were freed", freed)
	}
	c.Backward([]*torch.Tensor{y}, []*torch.Tensor{c.Op("aten::ones_like", y)}, false)
	if g := c.GradOf(m); g == nil || g.Numel() != 1000 {
		t.Errorf("gradient %v", g)
	}
	m.SetGradOf(nil)
}

// Autograd sums the gradients of a tensor's uses as they come, the last use first; a branch's uses
// are summed by themselves. float32 has no 1e8 + 1, so the order is seen in the sum.
func TestBranchSumsItsUsesFirst(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true})
	x := torchtest.Leaf(t, c, 1)
	for _, row := range []struct {
		reason string
		side   func(h *torch.Tensor) *torch.Tensor
		want   float32
	}{
		{"three uses: (1 + 1e8) - 1e8", func(h *torch.Tensor) *torch.Tensor { return h }, 0},
		{"two of them on a branch: 1 + (1e8 - 1e8)",
			func(h *torch.Tensor) *torch.Tensor { return engine.Branch(c, h) }, 1},
	} {
		h := c.MulScalar(x, 1)
		side := row.side(h)
		a, b, last := c.MulScalar(side, -1e8), c.MulScalar(side, 1e8), c.MulScalar(h, 1)
		y := c.Add(c.Add(a, b), last)
		c.Backward([]*torch.Tensor{y}, []*torch.Tensor{c.Op("aten::ones_like", y)}, false)
		if got := gradOf(c, x)[0]; got != row.want {
			t.Errorf("%s: got %v, want %v", row.reason, got, row.want)
		}
	}
}

func TestBranchIsTheSameTensor(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true})
	x := torchtest.Leaf(t, c, 3)
	h := c.MulScalar(x, 2)
	b := engine.Branch(c, h)
	if p, _ := h.Storage(); b.IsLeaf() || b.String() != h.String() {
		t.Errorf("the branch is %v", b)
	} else if q, _ := b.Storage(); p != q {
		t.Error("the branch has memory of its own")
	}
	square := c.Mul(h, h) // saves h
	before := h.Changes()
	c.AddScalar_(b, 1)
	if h.Changes() != before+1 {
		t.Error("a change of the branch is not one of the tensor")
	}
	if err := torch.Try(func() {
		c.Backward([]*torch.Tensor{square}, []*torch.Tensor{c.Op("aten::ones_like", square)}, false)
	}); err == nil || !strings.Contains(err.Error(), "modified by an inplace operation") {
		t.Errorf("backward through what the change spoiled: %v", err)
	}
	for name, plain := range map[string]*torch.Tensor{"of a tensor without " +
		"gradient": engine.Branch(c, c.Ones(torch.Float32, 2)), "of integers": engine.Branch(c,
		torch.From(c, []int64{1}))} {
		if plain.RequiresGrad() {
			t.Errorf("a branch %s needs one", name)
		}
	}
	c.NoGrad(func() {
		if second := engine.Branch(c, h); second.IsLeaf() || !second.RequiresGrad() {
			t.Error("without a graph a branch is a second handle")
		}
	})
}

// What has come from another device is no view of a tensor, so that a sum of gradients takes the memory
// that it takes where the gradient was made here: libtorch 2 adds to a gradient that nobody else has.
func TestSumsOfCopiedGradients(t *testing.T) {
	d := torchtest.Device(2)
	c := torchtest.New(t, torch.Options{Device: d, Grad: true, Seed: 4})
	peak := func(gradient func(from *torch.Tensor) *torch.Tensor) int64 {
		var x, from *torch.Tensor
		c.NoGrad(func() { x, from = c.Randn(10, 10), c.Randn(10, 10) })
		box := engine.Mailbox(c)
		x = engine.Gate(c, box, x)
		y := c.Sum(x)
		g := []*torch.Tensor{gradient(from), c.Op("aten::ones_like", y)}
		from.Free()
		p := engine.PrepareBackward(c, []*torch.Tensor{x, y}, g)
		torch.FreeAll(append(g, x, y))
		d.ResetPeak()
		before := d.Memory().Live
		p.Run()
		box.SetGradOf(nil)
		return d.Memory().Peak - before
	}
	want := peak(func(from *torch.Tensor) (g *torch.Tensor) {
		c.NoGrad(func() { g = c.Op("aten::tanh", from) })
		return g
	})
	for name, gradient := range map[string]func(*torch.Tensor) *torch.Tensor{
		"a copy": c.CopyHere,
		"memory for a copy": func(from *torch.Tensor) *torch.Tensor {
			g := engine.MemoryLike(c, from)
			engine.CopyOn(c, engine.StreamOf(c), g, from)
			return g
		},
	} {
		if got := peak(gradient); got != want {
			t.Errorf("%s: the backward takes %d bytes, with a gradient that was made here %d", name, got, want)
		}
	}
}

// At a border a tensor with gaps becomes a copy without. What is dense stays itself, in whichever order of
// dimensions, also where it repeats itself.
func TestBorderIsDense(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	x := c.Randn(3, 4, 6)
	for name, dense := range map[string]*torch.Tensor{
		"plain": x, "transposed": c.Transpose(x, 0, 2), "some rows": c.Narrow(x, 0, 1, 1),
		"expanded":         c.Expand(c.Ones(torch.Float32, 4, 1), 2, 4, 5),
		"of no dimensions": c.Sum(x), "empty": c.Narrow(c.Transpose(x, 0, 1), 0, 0, 0),
		"integers": torch.From(c, []int64{1, 2}),
	} {
		if engine.Boundary(c, dense) != dense {
			t.Errorf("%s: copied", name)
		}
	}
	for name, gaps := range map[string]*torch.Tensor{
		"columns": c.Narrow(x, 2, 1, 2), "transposed columns": c.Transpose(c.Narrow(x, 2, 1, 2), 0, 2),
		"expanded columns": c.Expand(c.Narrow(x, 2, 1, 1), 3, 4, 5),
		"every second":     c.Reshape(c.Narrow(c.Reshape(x, 3, 4, 3, 2), 3, 0, 1), 3, 4, 3),
		"integers":         c.Narrow(torch.From(c, []int64{1, 2, 3, 4}, 2, 2), 1, 1, 1),
	} {
		y := engine.Boundary(c, gaps)
		if y == gaps || !engine.Dense(y.Shape(), engine.Strides(c, y)) || !bytes.Equal(torch.Bytes(y),
			torch.Bytes(gaps)) {
			t.Errorf("%s: became %v with strides %v", name, y, engine.Strides(c, y))
		}
	}
}

// The gradient that comes back to a border is dense: along a path, with the engine, and where the backward
// is in two parts, which then hold the copy alone.
func TestGradientsAtABorderAreDense(t *testing.T) {
	torchtest.Check(t)
	d := torchtest.Device(2)
	for _, way := range []string{"path", "engine", "parts"} {
		c := torch.NewCtx(torch.Options{Device: d, Threads: 1, Grad: true})
		box := engine.Mailbox(c)
		x := engine.Gate(c, box, c.Ones(torch.Float32, 4, 6))
		w := c.Ones(torch.Float32, 6, 6).SetRequiresGrad(true)
		// the backward of a clone hands the gradient on as it is, that of a product with ones multiplies
		h := c.Clone(x)
		if way == "parts" {
			h = c.Linear(x, w, nil)
		}
		y := c.Cat([]*torch.Tensor{engine.Boundary(c, h), c.Zeros(torch.Float32, 4, 100)}, 1)
		roots := []*torch.Tensor{y}
		if way == "engine" {
			roots = append(roots, c.MulScalar(y, 2))
		}
		var grads []*torch.Tensor
		c.NoGrad(func() {
			for range roots {
				grads = append(grads, c.Ones(torch.Float32, 4, 106))
			}
		})
		if way != "parts" {
			c.Backward(roots, grads, false)
		} else {
			p := engine.PrepareBackward(c, roots, grads)
			later := p.Split()
			c.Release(0, box, w)
			p.Run()
			taken, given := c.TakeGrad(box), int64(4*6*4)
			// w, x, its gradient and that of h
			if live, want := d.Memory().Live, 6*6*4+3*given; live != want {
				t.Errorf("%d bytes are held for the second part, want %d", live, want)
			}
			box.SetGradOf(taken)
			later.Run()
			if got := torch.Values[float32](c.GradOf(w)); len(got) != 36 || got[0] != 4 {
				t.Errorf("the weight's gradient is %v", got)
			}
		}
		if g := c.GradOf(box); !engine.Dense(g.Shape(), engine.Strides(c, g)) {
			t.Errorf("%s: the gradient has strides %v", way, engine.Strides(c, g))
		}
		box.SetGradOf(nil)
		w.SetGradOf(nil)
		c.Close()
	}
}

// Branches and gates with mailboxes of their own hand on what is dense.
func TestBranchesAndMailboxesGetDenseGradients(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true})
	columns := func(x *torch.Tensor) *torch.Tensor {
		return c.Cat([]*torch.Tensor{x, c.Zeros(torch.Float32, 4, 1)}, 1)
	}
	box := engine.Mailbox(c)
	branch := engine.Branch(c, engine.Gate(c, box, c.Ones(torch.Float32, 4, 6)))
	mailbox, behind := engine.Mailed(c, c.Ones(torch.Float32, 4, 6))
	for name, way := range map[string]struct{ box, y *torch.Tensor }{"branch": {box, columns(branch)},
		"mailbox": {mailbox, columns(behind)}} {
		c.Backward([]*torch.Tensor{way.y}, []*torch.Tensor{c.Op("aten::ones_like", c.Detach(way.y))}, false)
		if g := c.GradOf(way.box); !engine.Dense(g.Shape(), engine.Strides(c, g)) {
			t.Errorf("%s: the gradient has strides %v", name, engine.Strides(c, g))
		}
		way.box.SetGradOf(nil)
	}
}

// What has made a layer's input is not the layer's: a gradient that comes to it past the layer comes as it
// is, and the one through the layer is dense.
func TestBorderOfAnInput(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true})
	for _, through := range []bool{false, true} {
		box := engine.Mailbox(c)
		x := c.Clone(engine.Gate(c, box, c.Ones(torch.Float32, 4, 6)))
		y := engine.Boundary(c, x, x)
		if again := engine.Boundary(c, y, x, y); again != y {
			t.Error("a border became another one")
		}
		if !through {
			y = x
		}
		wide := c.Cat([]*torch.Tensor{y, c.Zeros(torch.Float32, 4, 1)}, 1)
		c.Backward([]*torch.Tensor{wide}, []*torch.Tensor{c.Ones(torch.Float32, 4, 7)}, false)
		if g := c.GradOf(box); engine.Dense(g.Shape(), engine.Strides(c, g)) != through {
			t.Errorf("through the layer is %v: the gradient has strides %v", through, engine.Strides(c, g))
		}
		box.SetGradOf(nil)
	}
}

// ReLU gives the bits of aten::relu, also of what is no number, and so does its gradient.
func TestReLUIsAtens(t *testing.T) {
	negativeZero := float32(math.Copysign(0, -1))
	special := []float32{0, negativeZero, 1, -1, float32(math.NaN()), float32(math.Inf(1)),
		float32(math.Inf(-1)), 1e-42, -1e-42}
	for _, shape := range [][]int64{{}, {1}, {9}, {2, 17}, {3, 32, 5}, {200, 200}} {
		for _, transposed := range []bool{false, true} {
			t.Run(fmt.Sprint(shape, transposed), func(t *testing.T) {
				c := torchtest.New(t, torch.Options{Grad: true, Threads: 1, Seed: 3})
				draw := func(values []float32) *torch.Tensor {
					x := c.Normal_(c.Empty(torch.Float32, shape...), 0, 1)
					flat := c.Reshape(x, -1)
					for i := range min(int64(len(values)), flat.Size(0)) {
						c.Copy_(c.Narrow(flat, 0, i, 1), torch.From(c, values[i:i+1], 1))
					}
					if transposed && len(shape) > 1 {
						x = c.Transpose(x, 0, 1)
					}
					return x
				}
				x, g := draw(special), draw(nil)
				a, b := c.Detach(x).SetRequiresGrad(true), c.Detach(x).SetRequiresGrad(true)
				y, z := c.Op("penstock::relu", a), c.Call("aten::relu", b)[0].(*torch.Tensor)
				c.Backward([]*torch.Tensor{y}, []*torch.Tensor{g}, false)
				c.Backward([]*torch.Tensor{z}, []*torch.Tensor{g}, false)
				sameBits(t, "result", y, z)
				sameBits(t, "gradient", c.GradOf(a), c.GradOf(b))
				a.SetGradOf(nil)
				b.SetGradOf(nil)
			})
		}
	}
}

// sameBits compares the bits of two tensors.
func sameBits(t *testing.T, what string, a, b *torch.Tensor) {
	t.Helper()
	if string(torch.Bytes(a)) != string(torch.Bytes(b)) {
		t.Errorf("%s: other bits", what)
	}
}

// A backward through one path gives the gradients that it gives beside another root, where
// libtorch's engine runs it: of leaves that one layer uses, and of one that two layers use.
func TestBackwardAlongAPathIsTheEngines(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true, Threads: 1, Seed: 3})
	draw := func(shape ...int64) *torch.Tensor { return c.Normal_(c.Empty(torch.Float32, shape...), 0, 1) }
	const width = 24
	var leaves, inputs, outGrads []*torch.Tensor
	for range 3 {
		inputs, outGrads = append(inputs, draw(7, width)), append(outGrads, draw(7, width))
		leaves = append(leaves, draw(width, width), draw(width), draw(width))
	}
	for _, shared := range []bool{false, true} {
		for _, keep := range []bool{false, true} {
			gradients := func(others int) (bits []string) {
				var mine []*torch.Tensor
				for _, l := range leaves {
					mine = append(mine, c.Clone(l).SetRequiresGrad(true))
				}
				if shared {
					mine[4] = mine[1]
				}
				for i := range 3 {
					x := c.Clone(inputs[i]).SetRequiresGrad(true)
					y := x
					for k := 0; k < len(mine); k += 3 {
						y = c.Mul(c.Op("penstock::relu", c.Linear(y, mine[k], mine[k+1])), mine[k+2])
					}
					roots, grads := []*torch.Tensor{y}, []*torch.Tensor{outGrads[i]}
					for range others {
						roots = append(roots, c.Mul(draw(1).SetRequiresGrad(true), draw(1)))
						grads = append(grads, c.Ones(torch.Float32, 1))
					}
					c.Backward(roots, grads, keep)
					bits = append(bits, string(torch.Bytes(c.TakeGrad(x))))
				}
				for _, l := range mine {
					if l.HasGrad() {
						bits = append(bits, string(torch.Bytes(c.TakeGrad(l))))
					}
				}
				return bits
			}
			path, engine := gradients(0), gradients(1)
			if fmt.Sprint(path) != fmt.Sprint(engine) {
				t.Errorf("shared %v, keep %v: other bits", shared, keep)
			}
		}
	}
}

// recipe is a model as a list of steps: each makes the next activation, of 6 x 8, out of earlier
// ones and weights.
type recipe struct {
	gated  bool // the gradient of the input is wanted
	frozen int  // a weight that is not trained; -1 for none
	aside  bool // a second output is made of a weight alone
	steps  []step
}

type step struct {
	what         string
	weight, from int
}

var steps = []string{
	"linear", "linear", "linear", "linear without bias", "rows of rows", "aten's linear", "product",
	"convolution",
	"grouped convolution", "weight made of a weight",
	"bias", "scale", "norm", "gelu", "tanh", "residual", "pieces", "attention", "detached", "checkpoint",
	"node", "in place",
}

func drawRecipe(t *rapid.T) recipe {
	weight := rapid.IntRange(0, weights-1)
	r := recipe{gated: rapid.Bool().Draw(t, "gated"), frozen: -1, aside: rapid.Bool().Draw(t, "aside")}
	if rapid.Bool().Draw(t, "freeze") {
		r.frozen = weight.Draw(t, "frozen")
	}
	for i := range rapid.IntRange(1, 10).Draw(t, "steps") {
		what := rapid.SampledFrom(steps).Draw(t, "step")
		r.steps = append(r.steps, step{what, weight.Draw(t, "weight"), rapid.IntRange(0, i).Draw(t, "from")})
	}
	return r
}

const weights = 4

// model is a recipe's weights: matrices of 8 x 8, vectors of 8, kernels of 2 x 2 x 3 x 3.
type model struct {
	recipe
	matrix, vector, kernel []*torch.Tensor
}

func (r recipe) model(c *torch.Ctx) *model {
	m := &model{recipe: r}
	draw := func(i int, shape ...int64) *torch.Tensor {
		return c.MulScalar_(c.Randn(shape...), 0.4).SetRequiresGrad(i != r.frozen)
	}
	for i := range weights {
		m.matrix, m.vector = append(m.matrix, draw(i, 8, 8)), append(m.vector, draw(i, 8))
		m.kernel = append(m.kernel, draw(i, 2, 2, 3, 3))
	}
	return m
}

func (m *model) forward(c *torch.Ctx, x *torch.Tensor) []*torch.Tensor {
	made := []*torch.Tensor{x}
	for _, s := range m.steps {
		h, w, v := made[len(made)-1], m.matrix[s.weight], m.vector[s.weight]
		conv := func(kernel *torch.Tensor, groups int64) *torch.Tensor {
			one := []int64{1, 1}
			return c.Reshape(c.Op("penstock::conv2d", c.Reshape(h, 6, 2, 2, 2), kernel, nil, one, one,
				one, groups), 6, 8)
		}
		switch s.what {
		case "linear":
			h = c.Linear(h, w, v)
		case "linear without bias":
			h = c.Linear(h, w, nil)
		case "rows of rows":
			h = c.Reshape(c.Linear(c.Reshape(h, 2, 3, 8), w, v), 6, 8)
		case "aten's linear":
			h = c.PlainLinear(h, w, v)
		case "product":
			h = c.Op("aten::mm", h, w)
		case "convolution":
			h = conv(m.kernel[s.weight], 1)
		case "grouped convolution":
			h = conv(c.Narrow(m.kernel[s.weight], 1, 0, 1), 2)
		case "weight made of a weight":
			h = c.Op("aten::mm", h, c.Op("aten::tanh", c.Transpose(w, 0, 1)))
		case "bias":
			h = c.Add(h, v)
		case "scale":
			h = c.Mul(h, c.Reshape(c.Narrow(w, 0, 1, 1), 8))
		case "norm":
			h = c.Op("aten::layer_norm", h, []int64{8}, v, v, 1e-5)
		case "gelu":
			h = c.GELU(h, "none")
		case "tanh":
			h = c.Op("aten::tanh", h)
		case "residual":
			h = c.Add(h, made[s.from])
		case "pieces":
			list := c.Call("aten::split.Tensor", h, 3, 1)[0].([]*torch.Tensor)
			h = c.Cat([]*torch.Tensor{list[2], list[0], list[1]}, 1)
		case "attention":
			h = c.Op("aten::mm", c.Op("aten::softmax.int", c.Op("aten::mm", h, c.Transpose(made[s.from],
				0, 1)), 1), h)
		case "detached":
			h = c.Add(c.Linear(h, w, v), c.Detach(made[s.from]))
		case "checkpoint":
			h = engine.Checkpoint(c, func(c *torch.Ctx, in []*torch.Tensor) []*torch.Tensor {
				return []*torch.Tensor{c.Op("aten::tanh", c.Linear(in[0], w, v))}
			}, []*torch.Tensor{h}, true, w, v)[0]
		case "node":
			h = ownProduct(c, h, w)
		case "in place":
			h = c.MulScalar_(c.Add(h, v), 0.5)
		}
		made = append(made, h)
	}
	outputs := made[len(made)-1:]
	if m.aside {
		outputs = append(outputs, c.Op("aten::mm", m.matrix[0], m.matrix[1]))
	}
	return outputs
}

// own is a matrix product whose node is Go code.
type own struct{ x, w *torch.Tensor }

func ownProduct(c *torch.Ctx, x, w *torch.Tensor) *torch.Tensor {
	var y *torch.Tensor
	n := &own{}
	c.NoGrad(func() { y, n.x, n.w = c.Op("aten::mm", x, w), c.Keep(c.Detach(x)), c.Keep(c.Detach(w)) })
	return engine.Attach(c, []*torch.Tensor{x, w}, []*torch.Tensor{y}, n)[0]
}

func (n *own) Backward(c *torch.Ctx, a *engine.Arrival) {
	if a.Grads[0] == nil {
		return
	}
	if a.Wanted[0] {
		a.InputGrads[0] = c.Op("aten::mm", a.Grads[0], c.Transpose(n.w, 0, 1))
	}
	if a.Wanted[1] {
		a.InputGrads[1] = c.Op("aten::mm", c.Transpose(n.x, 0, 1), a.Grads[0])
	}
}

func (n *own) Forget() {
	n.x.Free()
	n.w.Free()
}

// gradients runs a model on some micro-batches and returns all gradients, as bytes. order has the
// micro-batches whose first part runs, and, as -1, when the next micro-batch's weights have theirs.
// Nil is whole backwards.
func (r recipe) gradients(microBatches int, order []int, first ...int) map[string]string {
	runtime.LockOSThread() // autograd numbers nodes on each thread
	defer runtime.UnlockOSThread()
	c := torch.NewCtx(torch.Options{Device: torchtest.Device(0), Grad: true, Threads: 1, Seed: 11})
	defer c.Close()
	var m *model
	c.NoGrad(func() { m = r.model(c) })
	out := map[string]string{}
	read := func(what string, t *torch.Tensor) {
		if g := c.GradOf(t); g != nil {
			out[what] = string(torch.Bytes(g))
			t.SetGradOf(nil)
		}
	}
	var prepared, later []*engine.Prepared
	var boxes []*torch.Tensor
	for i := range microBatches {
		var x *torch.Tensor
		c.NoGrad(func() { x = c.Randn(6, 8) })
		box := engine.Mailbox(c)
		if boxes = append(boxes, box); r.gated {
			x = engine.Gate(c, box, x)
		}
		var roots, grads []*torch.Tensor
		mark := c.Mark()
		for _, y := range m.forward(c, x) {
			if y.RequiresGrad() {
				roots, grads = append(roots, y), append(grads, c.MulScalar(c.Detach(y), 0.5))
			}
		}
		prepared = append(prepared, engine.PrepareBackward(c, roots, grads))
		if c.Release(mark); order == nil {
			prepared[i].Run()
			read(fmt.Sprintf("input %d", i), box)
		}
	}
	for _, i := range order {
		if i < 0 {
			later[0].Run()
			later = later[1:]
			continue
		}
		var tied []*torch.Tensor
		for _, k := range first {
			if m.matrix[k].RequiresGrad() {
				tied = append(tied, m.matrix[k])
			}
		}
		later = append(later, prepared[i].Split(tied...))
		prepared[i].Run()
		read(fmt.Sprintf("input %d", i), boxes[i])
	}
	for i := range weights {
		read(fmt.Sprintf("matrix %d", i), m.matrix[i])
		read(fmt.Sprintf("vector %d", i), m.vector[i])
		read(fmt.Sprintf("kernel %d", i), m.kernel[i])
	}
	return out
}

// A backward in two parts gives the bits of one in one, whatever the model, also where the second
// part comes after the first ones of later micro-batches, and where some weights are wanted first.
func TestSplitGivesTheSameBits(t *testing.T) {
	torchtest.Check(t)
	orders := [][]int{{0, -1, 1, -1, 2, -1}, {0, 1, -1, 2, -1, -1}, {0, 1, 2, -1, -1, -1}}
	rapid.Check(t, func(t *rapid.T) {
		r := drawRecipe(t)
		order := rapid.SampledFrom(orders).Draw(t, "order")
		first := rapid.SliceOfNDistinct(rapid.IntRange(0, weights-1), 0, 2, rapid.ID[int]).Draw(t, "first")
		if diff := cmp.Diff(r.gradients(3, nil), r.gradients(3, order, first...)); diff != "" {
			t.Errorf("%+v, order %v, first %v: %s", r, order, first, diff)
		}
	})
}

// stack is linear layers with GELU between them, on a gate.
type stack struct {
	weight, bias []*torch.Tensor
	box          *torch.Tensor
}

func newStack(c *torch.Ctx, layers int, width int64) *stack {
	s := &stack{}
	c.NoGrad(func() {
		for range layers {
			w := c.MulScalar_(c.Randn(width, width), 0.1)
			s.weight = append(s.weight, w.SetRequiresGrad(true))
			s.bias = append(s.bias, c.Randn(width).SetRequiresGrad(true))
		}
	})
	s.box = engine.Mailbox(c)
	return s
}

// prepare runs the layers and frees what the graph does not hold.
func (s *stack) prepare(c *torch.Ctx, rows int64) *engine.Prepared {
	mark := c.Mark()
	var x *torch.Tensor
	c.NoGrad(func() { x = c.Randn(rows, s.weight[0].Shape()[0]) })
	x = engine.Gate(c, s.box, x)
	for i, w := range s.weight {
		if x = c.Linear(x, w, s.bias[i]); i < len(s.weight)-1 {
			x = c.GELU(x, "none")
		}
	}
	p := engine.PrepareBackward(c, []*torch.Tensor{x}, []*torch.Tensor{c.Op("aten::ones_like", x)})
	c.Release(mark)
	return p
}

func (s *stack) drop() {
	for _, t := range append(append([]*torch.Tensor{s.box}, s.weight...), s.bias...) {
		t.SetGradOf(nil)
	}
}

// What the second part needs is in the account, and is the least: each layer's input and the
// gradient of its output. GELU's input is free again, and so is all of it after the second part.
func TestSplitHoldsInputsAndGradients(t *testing.T) {
	device := torchtest.Device(2)
	c := torchtest.New(t, torch.Options{Device: device, Grad: true})
	const layers, width, rows = 5, 16, 32
	s := newStack(c, layers, width)
	defer s.drop()
	begin := device.Memory().Live
	p := s.prepare(c, rows)
	const one = 4 * rows * width
	if got, want := device.Memory().Live-begin, int64(one*(layers+layers-1+1)); got != want {
		t.Errorf("the graph holds %d bytes, want %d: inputs of %d linears and %d GELUs, and the gradient",
			got, want, layers, layers-1)
	}
	device.ResetPeak()
	w := p.Split()
	p.Run()
	s.box.SetGradOf(nil)
	if got, want := device.Memory().Live-begin, int64(2*layers*one); got != want {
		t.Errorf("after the first part %d bytes are held, want %d: x and dy of %d layers", got, want, layers)
	}
	for i, weight := range s.weight {
		if weight.HasGrad() || s.bias[i].HasGrad() {
			t.Errorf("layer %d has gradients after the first part", i)
		}
	}
	w.Run()
	gradients := int64(layers * 4 * (width*width + width))
	if got := device.Memory().Live - begin; got != gradients {
		t.Errorf("%d bytes are live after both, want those of the weights' gradients, %d", got, gradients)
	}
}

// Where gradients are None: an output that gets none is no root, an input that wants none has no
// gate, a node may be given none, a weight may be frozen.
func TestSplitWithoutSomeGradients(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true, Seed: 2})
	box := engine.Mailbox(c)
	x := engine.Gate(c, box, c.Randn(4, 6))
	plain := c.Randn(4, 6) // an input that wants none
	w, v, unused := torchtest.Leaf(t, c, 6, 6), torchtest.Leaf(t, c, 6, 6), torchtest.Leaf(t, c, 6, 6)
	h := c.Linear(x, w, nil)
	parts := c.Call("aten::split.Tensor", c.Linear(c.Add(h, plain), v, nil), 2, 1)[0].([]*torch.Tensor)
	dead := c.Linear(h, unused, nil) // nobody has its gradient
	if !dead.RequiresGrad() {
		t.Fatal("the dead output has no graph")
	}
	y := c.Op("aten::tanh", parts[1]) // parts 0 and 2 get none
	grad := c.Op("aten::ones_like", y)
	c.Backward([]*torch.Tensor{y}, []*torch.Tensor{grad}, true)
	want := [][]float32{gradOf(c, w), gradOf(c, v), gradOf(c, box)}
	p := engine.PrepareBackward(c, []*torch.Tensor{y}, []*torch.Tensor{grad})
	later := p.Split()
	p.Run()
	if w.HasGrad() || v.HasGrad() {
		t.Error("a weight has its gradient after the first part")
	}
	later.Run()
	for i, got := range [][]float32{gradOf(c, w), gradOf(c, v), gradOf(c, box)} {
		if len(got) == 0 || !slices.Equal(got, want[i]) {
			t.Errorf("gradient %d is %v, want %v", i, got, want[i])
		}
	}
	if unused.HasGrad() {
		t.Error("a weight whose output has no gradient got one")
	}
}

// Roots may be views, several outputs of a node, and a tensor that others are made of, with its own
// gradient; their handles may be freed before.
func TestSplitOfSeveralOutputs(t *testing.T) {
	torchtest.Check(t)
	run := func(parts bool) [][]float32 {
		c := torch.NewCtx(torch.Options{Device: torchtest.Device(0), Grad: true, Threads: 1, Seed: 5})
		defer c.Close()
		var w, v, x *torch.Tensor
		c.NoGrad(func() {
			w, v, x = c.Randn(6, 6).SetRequiresGrad(true), c.Randn(6, 6).SetRequiresGrad(true), c.Randn(4, 6)
		})
		box := engine.Mailbox(c)
		mark := c.Mark()
		h := c.Linear(c.Op("aten::tanh", c.Linear(engine.Gate(c, box, x), w, nil)), v, nil)
		list := c.Call("aten::split.Tensor", h, 2, 1)[0].([]*torch.Tensor)
		roots := []*torch.Tensor{list[0], c.Transpose(h, 0, 1), list[2], h, c.Narrow(c.Linear(h, w, nil),
			0, 1, 2), h}
		var grads []*torch.Tensor
		c.NoGrad(func() {
			for _, r := range roots {
				grads = append(grads, c.Normal_(c.Op("aten::empty_like", r), 0, 1))
			}
		})
		p := engine.PrepareBackward(c, roots, grads)
		c.Release(mark)
		if !parts {
			p.Run()
		} else {
			later := p.Split()
			p.Run()
			if w.HasGrad() || v.HasGrad() {
				t.Error("a weight has its gradient after the first part")
			}
			later.Run()
		}
		return [][]float32{gradOf(c, box), gradOf(c, w), gradOf(c, v)}
	}
	if diff := cmp.Diff(run(false), run(true)); diff != "" {
		t.Error(diff)
	}
}

// A part that fails names the node and the operator, and leaves nothing, wherever memory runs out.
func TestSplitFailsAtEveryPoint(t *testing.T) {
	device := torchtest.Device(2)
	failed := map[string]int{}
	for room := int64(0); ; room += 512 {
		c := torch.NewCtx(torch.Options{Device: device, Grad: true, Threads: 1})
		s := newStack(c, 3, 16)
		begin := device.Memory().Live
		p := s.prepare(c, 8)
		device.SetLimit(device.Memory().Live + room + 1)
		part := "first"
		later := p.Split()
		err := torch.Try(func() {
			p.Run()
			part = "later"
			later.Run()
		})
		device.SetLimit(0)
		later.Free()
		p.Free()
		s.drop()
		if live := device.Memory().Live; live != begin {
			t.Errorf("with %d bytes: %d are live after the %s part", room, live-begin, part)
		}
		c.Close()
		var e *torch.Error
		switch {
		case err == nil:
			if failed["first"] < 2 || failed["later"] < 2 {
				t.Errorf("parts failed %v times", failed)
			}
			return
		case !errors.Is(err, torch.ErrOutOfMemory) || !errors.As(err, &e) || e.Sequence == 0:
			t.Fatalf("with %d bytes: %+v", room, err)
		}
		failed[part]++
	}
}

// A second part that is freed, before or after the first has run, leaves the weights without gradients.
func TestSplitFreesItsSecondPart(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true})
	s := newStack(c, 2, 8)
	defer s.drop()
	for _, first := range []bool{true, false} {
		p := s.prepare(c, 4)
		later := p.Split()
		if first {
			later.Free()
		}
		p.Run()
		later.Free()
		if s.weight[0].HasGrad() || !s.box.HasGrad() {
			t.Errorf("freed before the first part: %v; freeing the second part is not leaving it out", first)
		}
	}
	y := c.MulScalar(c.Randn(4, 8).SetRequiresGrad(true), 2)
	p := engine.PrepareBackward(c, []*torch.Tensor{y}, []*torch.Tensor{c.Op("aten::ones_like", y)})
	defer p.Free()
	if err := torch.Try(func() { p.Split(y) }); err == nil || !strings.Contains(err.Error(), "want leaves") {
		t.Errorf("a tensor that was computed as one that is wanted first: %v", err)
	}
}
