package torch

import (
	"runtime"

	"penstock.example/internal/shim"
)

// SetRequiresGrad sets whether t, a leaf, gets a gradient, and returns t.
func (t *Tensor) SetRequiresGrad(on bool) *Tensor {
	t.check("requires_grad", shim.SetRequiresGrad(t.given("requires_grad"), on))
	return t
}

// GradOf returns a handle on t's gradient, owned by the context, or nil when it has none.
func (c *Ctx) GradOf(t *Tensor) *Tensor { return c.ownAny(shim.Grad(t.given("grad"))) }

// TakeGrad takes t's gradient away from it. The context owns it; nil is none.
func (c *Ctx) TakeGrad(t *Tensor) *Tensor { return c.ownAny(shim.TakeGrad(t.given("grad"))) }

// HasGrad says whether t has a gradient.
func (t *Tensor) HasGrad() bool {
	h := shim.Grad(t.given("grad"))
	shim.Release(h)
	return h != 0
}

// SetGradOf replaces t's gradient. Nil removes it and frees its memory.
func (t *Tensor) SetGradOf(grad *Tensor) {
	t.check("set grad", shim.SetGrad(t.given("set grad"), grad.handle()))
}

// Backward runs the graph of outputs, starting from grads, and adds to the gradients of the leaves.
// grads has a gradient for each output; nil stands for one, and is for scalars only. The graph is
// freed unless keepGraph is set.
//
// It runs on the calling goroutine and returns when all is done. No two goroutines may add to the
// gradient of one leaf at a time. A function that Checkpoint runs
// again may panic: Backward then panics with the same value.
func (c *Ctx) Backward(outputs, grads []*Tensor, keepGraph bool) {
	for _, t := range outputs {
		t.given("backward")
	}
	c.ended(shim.Backward(&c.mode, handlesOf(outputs), handlesOf(grads[:len(outputs)]), keepGraph))
}

// ended ends as a backward has: by return, by a panic, or as Go code that ran in it.
func (c *Ctx) ended(err *shim.Error) {
	switch {
	case err == nil:
	case err.Ended == shim.Goexit:
		runtime.Goexit()
	case err.Ended != nil:
		panic(err.Ended)
	}
	c.check("backward", err)
}

// Prepared is a backward that was not run yet. It holds the graph and the gradients that it starts
// from, but not the outputs. Once their handles are freed, each output is freed as soon as the
// backward has used it. Ctx.Backward holds them to its end.
type Prepared struct {
	c      *Ctx
	handle uint64
}

// PrepareBackward prepares a backward from outputs, with a gradient for each. Call Run or Free
// once.
func (c *Ctx) PrepareBackward(outputs, grads []*Tensor) *Prepared {
	handle, err := shim.PrepareBackward(&c.mode, handlesOf(outputs), handlesOf(grads[:len(outputs)]))
	c.check("backward", err, outputs...)
	return c.prepared(handle)
}

func (c *Ctx) prepared(handle uint64) *Prepared {
	p := &Prepared{c: c, handle: handle}
	remember(p)
	return p
}

// Split divides the backward: p keeps the gradients that others wait for, and the result, which is
// run after p, adds those of the weights (Qi et al., "Zero Bubble Pipeline Parallelism", 2023). Run
// or Free each of them once. Only Free the result if p has failed.
//
// Others wait for the gradients of gates (Ctx.Gate) and of the leaves in first. All that leads to
// them is run by p. Where a product of tensors (a linear layer, a convolution, a matrix product) is
// a step on that way and has a weight, the weight's gradient is for later, and so is all that leads
// to none of them. Weights of other operators, such as norms, get their gradients in p, and so does
// a weight that both kinds use. If nothing leads to a gate, p does nothing.
//
// Both parts together compute what p would have computed, to the bit, and multiply as often. After
// p the result holds each product's saved tensors and its gradient, and nothing else of the
// graph. Freeing the result leaves those weights without their gradients.
func (p *Prepared) Split(first ...*Tensor) *Prepared {
	p.mustBeThere()
	handle, err := shim.SplitBackward(&p.c.mode, p.handle, handlesOf(first))
	p.c.check("backward", err, first...)
	return p.c.prepared(handle)
}

// Run runs the backward on the context that prepared it, and frees the graph. It blocks and fails
// as Ctx.Backward does.
func (p *Prepared) Run() {
	p.mustBeThere()
	p.c.ended(shim.RunBackward(&p.c.mode, p.release()))
}

func (p *Prepared) mustBeThere() {
	if p.handle == 0 {
		panic("torch: use of a backward that was run or freed")
	}
}

// Free drops a backward that was not run. It is idempotent.
func (p *Prepared) Free() {
	if p != nil && p.handle != 0 {
		shim.DropBackward(p.release())
	}
}

// release gives the handle away.
func (p *Prepared) release() uint64 {
	handle := p.handle
	p.handle = 0
	forget(p)
	return handle
}

func (p *Prepared) String() string { return "backward" }
