package torch_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/torch"
)

// At a border a tensor with gaps becomes a copy without. What is dense stays itself, in whichever order of
// dimensions, also where it repeats itself.
func TestBorderIsDense(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	x := c.Randn(3, 4, 6)
	for name, dense := range map[string]*torch.Tensor{
		"plain": x, "transposed": c.Transpose(x, 0, 2), "some rows": c.Narrow(x, 0, 1, 1), "expanded": c.Expand(c.Ones(torch.Float32, 4, 1), 2, 4, 5),
		"of no dimensions": c.Sum(x), "empty": c.Narrow(c.Transpose(x, 0, 1), 0, 0, 0), "integers": torch.From(c, []int64{1, 2}),
	} {
		if c.Border(dense) != dense {
			t.Errorf("%s: copied", name)
		}
	}
	for name, gaps := range map[string]*torch.Tensor{
		"columns": c.Narrow(x, 2, 1, 2), "transposed columns": c.Transpose(c.Narrow(x, 2, 1, 2), 0, 2), "expanded columns": c.Expand(c.Narrow(x, 2, 1, 1), 3, 4, 5),
		"every second": c.Reshape(c.Narrow(c.Reshape(x, 3, 4, 3, 2), 3, 0, 1), 3, 4, 3), "integers": c.Narrow(torch.From(c, []int64{1, 2, 3, 4}, 2, 2), 1, 1, 1),
	} {
		y := c.Border(gaps)
		if y == gaps || !torch.Dense(y.Shape(), c.Strides(y)) || !bytes.Equal(torch.Bytes(y), torch.Bytes(gaps)) {
			t.Errorf("%s: became %v with strides %v", name, y, c.Strides(y))
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
		box := c.Mailbox()
		x := c.Gate(box, c.Ones(torch.Float32, 4, 6))
		w := c.Ones(torch.Float32, 6, 6).SetRequiresGrad(true)
		// the backward of a clone hands the gradient on as it is, that of a product with ones multiplies
		h := c.Clone(x)
		if way == "parts" {
			h = c.Linear(x, w, nil)
		}
		y := c.Cat([]*torch.Tensor{c.Border(h), c.Zeros(torch.Float32, 4, 100)}, 1)
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
			p := c.PrepareBackward(roots, grads)
			later := p.Split()
			c.Release(0, box, w)
			p.Run()
			taken, given := c.TakeGrad(box), int64(4*6*4)
			if live, want := d.Memory().Live, 6*6*4+3*given; live != want { // w, x, its gradient and that of h
				t.Errorf("%d bytes are held for the second part, want %d", live, want)
			}
			box.SetGradOf(taken)
			later.Run()
			if got := torch.Values[float32](c.GradOf(w)); len(got) != 36 || got[0] != 4 {
				t.Errorf("the weight's gradient is %v", got)
			}
		}
		if g := c.GradOf(box); !torch.Dense(g.Shape(), c.Strides(g)) {
			t.Errorf("%s: the gradient has strides %v", way, c.Strides(g))
		}
		box.SetGradOf(nil)
		w.SetGradOf(nil)
		c.Close()
	}
}

// Branches and gates with mailboxes of their own hand on what is dense.
func TestBranchesAndMailboxesGetDenseGradients(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true})
	columns := func(x *torch.Tensor) *torch.Tensor { return c.Cat([]*torch.Tensor{x, c.Zeros(torch.Float32, 4, 1)}, 1) }
	box := c.Mailbox()
	branch := c.Branch(c.Gate(box, c.Ones(torch.Float32, 4, 6)))
	mailbox, behind := c.Mailed(c.Ones(torch.Float32, 4, 6))
	for name, way := range map[string]struct{ box, y *torch.Tensor }{"branch": {box, columns(branch)}, "mailbox": {mailbox, columns(behind)}} {
		c.Backward([]*torch.Tensor{way.y}, []*torch.Tensor{c.OnesLike(c.Detach(way.y))}, false)
		if g := c.GradOf(way.box); !torch.Dense(g.Shape(), c.Strides(g)) {
			t.Errorf("%s: the gradient has strides %v", name, c.Strides(g))
		}
		way.box.SetGradOf(nil)
	}
}

// An expanded gradient with gaps stays expanded when it loses them.
func TestBorderKeepsGradientsExpanded(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true})
	box := c.Mailbox()
	y := c.Border(c.Clone(c.Gate(box, c.Ones(torch.Float32, 3, 4, 6))))
	wide := c.SumDim(c.Cat([]*torch.Tensor{y, c.Zeros(torch.Float32, 3, 4, 4)}, 2), []int64{1}, true)
	c.Backward([]*torch.Tensor{wide}, []*torch.Tensor{c.Ones(torch.Float32, 3, 1, 10)}, false)
	if got := c.Strides(c.GradOf(box)); !slices.Equal(got, []int64{6, 0, 1}) {
		t.Errorf("the gradient has strides %v", got)
	}
	box.SetGradOf(nil)
}

// What has made a layer's input is not the layer's: a gradient that comes to it past the layer comes as it
// is, and the one through the layer is dense.
func TestBorderOfAnInput(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true})
	for _, through := range []bool{false, true} {
		box := c.Mailbox()
		x := c.Clone(c.Gate(box, c.Ones(torch.Float32, 4, 6)))
		y := c.Border(x, x)
		if again := c.Border(y, x, y); again != y {
			t.Error("a border became another one")
		}
		if !through {
			y = x
		}
		wide := c.Cat([]*torch.Tensor{y, c.Zeros(torch.Float32, 4, 1)}, 1)
		c.Backward([]*torch.Tensor{wide}, []*torch.Tensor{c.Ones(torch.Float32, 4, 7)}, false)
		if g := c.GradOf(box); torch.Dense(g.Shape(), c.Strides(g)) != through {
			t.Errorf("through the layer is %v: the gradient has strides %v", through, c.Strides(g))
		}
		box.SetGradOf(nil)
	}
}

// A copy that a limit refuses is said to be of the node that needs it.
func TestBorderNamesTheNodeThatLacksMemory(t *testing.T) {
	torchtest.Check(t)
	d := torchtest.Device(2)
	for _, uses := range []int{1, 2} { // along a path, and with the engine
		c := torch.NewCtx(torch.Options{Device: d, Threads: 1, Grad: true})
		box := c.Mailbox()
		x := c.Gate(box, c.Ones(torch.Float32, 40, 60))
		from := torch.Sequence()
		h := c.Border(c.Clone(x))
		to := torch.Sequence()
		y := c.Cat([]*torch.Tensor{h, c.Zeros(torch.Float32, 40, 1)}, 1)
		roots, grads := []*torch.Tensor{y}, []*torch.Tensor{c.Ones(torch.Float32, 40, 61)}
		if uses == 2 {
			roots, grads = append(roots, c.Sum(c.Zeros(torch.Float32, 1).SetRequiresGrad(true))), append(grads, nil)
		}
		d.SetLimit(d.Memory().Live + 40*60*4 - 1)
		err := torch.Try(func() { c.Backward(roots, grads, false) })
		d.SetLimit(0)
		var e *torch.Error
		var m *torch.MemoryError
		if !errors.As(err, &e) || !errors.As(err, &m) || e.Sequence < from || e.Sequence >= to {
			t.Errorf("%d roots: got %+v, want too little memory for a node from %d to %d", uses, e, from, to)
		}
		c.Close()
	}
}
