package torch

import (
	"runtime"

	"penstock.example/internal/shim"
)

// SetRequiresGrad sets whether t, a leaf, gets a gradient, and returns t.
func (t *Tensor) SetRequiresGrad(on bool) *Tensor {
	t.check("requires_grad", shim.SetRequiresGrad(t.handleFor("requires_grad"), on))
	return t
}

// GradOf returns a handle on t's gradient, owned by the context, or nil when it has none.
func (c *Ctx) GradOf(t *Tensor) *Tensor { return c.Own(shim.Grad(t.handleFor("grad"))) }

// TakeGrad is GradOf, and removes the gradient from t.
func (c *Ctx) TakeGrad(t *Tensor) *Tensor { return c.Own(shim.TakeGrad(t.handleFor("grad"))) }

// HasGrad reports whether t has a gradient.
func (t *Tensor) HasGrad() bool {
	h := shim.Grad(t.handleFor("grad"))
	shim.Release(h)
	return h != 0
}

// SetGradOf replaces t's gradient. Nil removes it and frees its memory.
func (t *Tensor) SetGradOf(grad *Tensor) {
	t.check("set grad", shim.SetGrad(t.handleFor("set grad"), grad.handle()))
}

// Backward runs the graph of outputs, starting from grads, and adds to the gradients of the leaves.
// grads has a gradient for each output. For a scalar output, nil is a gradient of 1. The graph is
// freed unless keepGraph is set.
//
// It runs on the calling goroutine and returns when all is done. Only one goroutine at a time may
// add to the gradient of a leaf. If a checkpointed function panics in its recomputation, Backward
// panics with the same value.
func (c *Ctx) Backward(outputs, grads []*Tensor, keepGraph bool) {
	for _, t := range outputs {
		t.handleFor("backward")
	}
	c.EndBackward(shim.Backward(&c.mode, Handles(outputs), Handles(grads[:len(outputs)]), keepGraph))
}

// Handles returns package shim's handles on tensors, 0 for nil.
func Handles(list []*Tensor) []shim.Handle {
	out := make([]shim.Handle, len(list))
	for i, t := range list {
		out[i] = t.handle()
	}
	return out
}

// EndBackward panics with the error of a backward of package shim, unless it is nil. If a
// recomputation has panicked or ended its goroutine, EndBackward does the same.
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
