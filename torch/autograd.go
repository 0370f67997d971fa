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
func (c *Ctx) GradOf(t *Tensor) *Tensor { return c.Own(shim.Grad(t.given("grad"))) }

// TakeGrad takes t's gradient away from it. The context owns it; nil is none.
func (c *Ctx) TakeGrad(t *Tensor) *Tensor { return c.Own(shim.TakeGrad(t.given("grad"))) }

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
	c.EndBackward(shim.Backward(&c.mode, handlesOf(outputs), handlesOf(grads[:len(outputs)]), keepGraph))
}

func handlesOf(list []*Tensor) []shim.Handle {
	out := make([]shim.Handle, len(list))
	for i, t := range list {
		out[i] = t.handle()
	}
	return out
}

// EndBackward ends as a backward of package shim has: by return, by a panic, or as Go code that ran in it.
func (c *Ctx) EndBackward(err *shim.Error) {
	switch {
	case err == nil:
	case err.Ended == shim.Goexit:
		runtime.Goexit()
	case err.Ended != nil:
		panic(err.Ended)
	}
	c.Check("backward", err)
}
