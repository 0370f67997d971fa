package torch_test

import (
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/torch"
)

func TestMailboxCostsNothing(t *testing.T) {
	c := torchtest.New(t, torch.Options{Device: torchtest.Device(2), Grad: true})
	before := torchtest.Device(2).Memory()
	m := c.Mailbox()
	if after := torchtest.Device(2).Memory(); after != before {
		t.Errorf("a mailbox moved the account from %+v to %+v", before, after)
	}
	if m.String() != "float32[0]" || !m.RequiresGrad() || !m.IsLeaf() || m.HasGrad() {
		t.Errorf("%v: requires grad %v, leaf %v, has a gradient %v", m, m.RequiresGrad(), m.IsLeaf(), m.HasGrad())
	}
}

// The gradient is left as it came: an expanded one takes the memory of one number, not of the
// tensor.
func TestGateLeavesTheGradientAsItCame(t *testing.T) {
	c := torchtest.New(t, torch.Options{Device: torchtest.Device(2), Grad: true})
	m, x := c.Mailbox(), c.Ones(torch.Float32, 100, 10)
	x.SetRequiresGrad(true)
	y := c.Gate(m, x)
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
	if err := torch.Try(func() { c.Backward([]*torch.Tensor{z}, []*torch.Tensor{nil}, false) }); err == nil || !strings.Contains(err.Error(), "second time") {
		t.Errorf("a backward without its graph: %v", err)
	}
	m.SetGradOf(nil)

	box := c.Gate(x, x) // the value as its own mailbox
	c.Backward([]*torch.Tensor{c.Sum(box)}, []*torch.Tensor{nil}, false)
	if got := torch.Values[float32](c.GradOf(x)); len(got) != 1000 || got[0] != 1 {
		t.Errorf("%d numbers", len(got))
	}
	x.SetGradOf(nil)
	c.NoGrad(func() {
		if c.Gate(m, x).RequiresGrad() {
			t.Error("a gate without a graph needs a gradient")
		}
	})
}

// The graph of a gate holds what its operators need, and addition needs nothing.
func TestGateHoldsNoValue(t *testing.T) {
	c := torchtest.New(t, torch.Options{Device: torchtest.Device(2), Grad: true})
	m, x := c.Mailbox(), c.Ones(torch.Float32, 1000)
	gate := c.Gate(m, x)
	y := c.AddScalar(gate, 1)
	live := torchtest.Device(2).Memory().Live
	x.Free()
	gate.Free()
	if freed := live - torchtest.Device(2).Memory().Live; freed != 4000 {
		t.Errorf("%d of 4000 bytes were freed", freed)
	}
	c.Backward([]*torch.Tensor{y}, []*torch.Tensor{c.OnesLike(y)}, false)
	if g := c.GradOf(m); g == nil || g.Numel() != 1000 {
		t.Errorf("gradient %v", g)
	}
	m.SetGradOf(nil)
}

func TestGateFailsWhenItsMailboxIsTheChangedValue(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true})
	x := leaf(t, c, 2)
	y := c.MulScalar(c.Gate(x, x), 2)
	c.NoGrad(func() { c.AddScalar_(x, 1) })
	if err := torch.Try(func() { c.Backward([]*torch.Tensor{y}, []*torch.Tensor{c.OnesLike(y)}, false) }); err == nil || !strings.Contains(err.Error(), "modified by an inplace operation") {
		t.Errorf("got %v", err)
	}
}

// Autograd sums the gradients of a tensor's uses as they come, the last use first; a branch's uses
// are summed by themselves. float32 has no 1e8 + 1, so the order is seen in the sum.
func TestBranchSumsItsUsesFirst(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true})
	x := leaf(t, c, 1)
	for _, row := range []struct {
		reason string
		side   func(h *torch.Tensor) *torch.Tensor
		want   float32
	}{
		{"three uses: (1 + 1e8) - 1e8", func(h *torch.Tensor) *torch.Tensor { return h }, 0},
		{"two of them on a branch: 1 + (1e8 - 1e8)", c.Branch, 1},
	} {
		h := c.MulScalar(x, 1)
		side := row.side(h)
		a, b, last := c.MulScalar(side, -1e8), c.MulScalar(side, 1e8), c.MulScalar(h, 1)
		y := c.Add(c.Add(a, b), last)
		c.Backward([]*torch.Tensor{y}, []*torch.Tensor{c.OnesLike(y)}, false)
		if got := gradOf(c, x)[0]; got != row.want {
			t.Errorf("%s: got %v, want %v", row.reason, got, row.want)
		}
	}
}

// What arrives at a branch goes on as it is: an expanded gradient is not made dense.
func TestBranchHandsTheGradientOn(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true})
	m := c.Mailbox()
	y := c.Sum(c.Branch(c.Gate(m, c.Ones(torch.Float32, 10, 10))))
	c.Backward([]*torch.Tensor{y}, []*torch.Tensor{nil}, false)
	if g := c.GradOf(m); g.String() != "float32[10,10]" {
		t.Errorf("got %v", g)
	} else if _, bytes := g.Storage(); bytes != 4 {
		t.Errorf("the gradient takes %d bytes, want the sum's one number", bytes)
	}
	m.SetGradOf(nil)
}

func TestBranchIsTheSameTensor(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true})
	x := leaf(t, c, 3)
	h := c.MulScalar(x, 2)
	b := c.Branch(h)
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
	if err := torch.Try(func() { c.Backward([]*torch.Tensor{square}, []*torch.Tensor{c.OnesLike(square)}, false) }); err == nil || !strings.Contains(err.Error(), "modified by an inplace operation") {
		t.Errorf("backward through what the change spoiled: %v", err)
	}
	for name, plain := range map[string]*torch.Tensor{"of a tensor without gradient": c.Branch(c.Ones(torch.Float32, 2)), "of integers": c.Branch(torch.From(c, []int64{1}))} {
		if plain.RequiresGrad() {
			t.Errorf("a branch %s needs one", name)
		}
	}
	c.NoGrad(func() {
		if second := c.Branch(h); second.IsLeaf() || !second.RequiresGrad() {
			t.Error("without a graph a branch is a second handle")
		}
	})
}

// A weight used twice in one graph has its gradient summed by autograd, in one order.
func TestPlainLinear(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true})
	x, w, bias := leaf(t, c, 2, 3), leaf(t, c, 3, 3), leaf(t, c, 3)
	for range 2 { // the second finds gradients to add to
		y := c.PlainLinear(c.PlainLinear(x, w, bias), w, bias)
		z := c.Linear(c.Linear(x, w, bias), w, bias)
		if !same(torch.Values[float32](y), torch.Values[float32](z)) {
			t.Error("the two linears differ")
		}
		c.Backward([]*torch.Tensor{y}, []*torch.Tensor{c.OnesLike(y)}, false)
	}
	twice := gradOf(c, w)
	x.SetGradOf(nil)
	bias.SetGradOf(nil)
	y := c.PlainLinear(c.PlainLinear(x, w, bias), w, bias)
	c.Backward([]*torch.Tensor{y}, []*torch.Tensor{c.OnesLike(y)}, false)
	for i, once := range gradOf(c, w) {
		if twice[i] != 2*once {
			t.Errorf("two backwards give %v, one %v", twice[i], once)
		}
	}
}

// What has come from another device is no view of a tensor, so that a sum of gradients takes the memory
// that it takes where the gradient was made here: libtorch 2 adds to a gradient that nobody else has.
func TestSumsOfCopiedGradients(t *testing.T) {
	d := torchtest.Device(2)
	c := torchtest.New(t, torch.Options{Device: d, Grad: true, Seed: 4})
	peak := func(gradient func(from *torch.Tensor) *torch.Tensor) int64 {
		var x, from *torch.Tensor
		c.NoGrad(func() { x, from = c.Randn(10, 10), c.Randn(10, 10) })
		box := c.Mailbox()
		x = c.Gate(box, x)
		y := c.Sum(x)
		g := []*torch.Tensor{gradient(from), c.OnesLike(y)}
		from.Free()
		p := c.PrepareBackward([]*torch.Tensor{x, y}, g)
		torch.FreeAll(append(g, x, y))
		d.ResetPeak()
		before := d.Memory().Live
		p.Run()
		box.SetGradOf(nil)
		return d.Memory().Peak - before
	}
	want := peak(func(from *torch.Tensor) (g *torch.Tensor) {
		c.NoGrad(func() { g = c.Tanh(from) })
		return g
	})
	for name, gradient := range map[string]func(*torch.Tensor) *torch.Tensor{
		"a copy": c.CopyHere,
		"memory for a copy": func(from *torch.Tensor) *torch.Tensor {
			g := c.MemoryLike(from)
			c.CopyOn(c.Stream(), g, from)
			return g
		},
	} {
		if got := peak(gradient); got != want {
			t.Errorf("%s: the backward takes %d bytes, with a gradient that was made here %d", name, got, want)
		}
	}
}
