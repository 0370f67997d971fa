package torch

import (
	"runtime"

	"penstock/internal/shim"
)

// SetRequiresGrad marks t as a leaf whose gradient is wanted, and returns it.
func (t *Tensor) SetRequiresGrad(on bool) *Tensor {
	if err := shim.SetRequiresGrad(t.given("requires_grad"), on); err != nil {
		panic(&Error{Op: "requires_grad", Args: []string{t.String()}, Message: err.Message})
	}
	return t
}

// GradOf is a handle on t's gradient, owned by the context, or nil when it has none.
func (c *Ctx) GradOf(t *Tensor) *Tensor {
	h := shim.Grad(t.given("grad"))
	if h == 0 {
		return nil
	}
	return c.own(h)
}

// HasGrad says whether t has a gradient.
func (t *Tensor) HasGrad() bool {
	h := shim.Grad(t.given("grad"))
	shim.Release(h)
	return h != 0
}

// SetGradOf replaces t's gradient; nil drops it and frees its memory.
func (t *Tensor) SetGradOf(grad *Tensor) {
	if err := shim.SetGrad(t.given("set grad"), grad.handle()); err != nil {
		panic(&Error{Op: "set grad", Args: []string{t.String(), grad.String()}, Message: err.Message})
	}
}

// Backward runs the graph behind outputs, starting from grads (one for each output; nil stands for one, and is for scalars only), and adds into the
// gradients of the leaves. It frees the graph unless keepGraph is set. It runs on the calling goroutine and returns when all is done.
// A function that Checkpoint runs again may panic: Backward then panics with the same value.
func (c *Ctx) Backward(outputs, grads []*Tensor, keepGraph bool) {
	if len(outputs) != len(grads) {
		panic(&Error{Op: "backward", Device: c.device, Message: "outputs and gradients differ in number"})
	}
	o, g := make([]shim.Handle, len(outputs)), make([]shim.Handle, len(outputs))
	for i := range outputs {
		o[i], g[i] = outputs[i].given("backward"), grads[i].handle()
	}
	c.backwardFailed(shim.Backward(&c.mode, o, g, keepGraph))
}

// backwardFailed panics, or ends the goroutine, if there is an error.
func (c *Ctx) backwardFailed(err *shim.Error) {
	if err == nil {
		return
	}
	switch err.Ended {
	case nil:
	case shim.Goexit:
		runtime.Goexit()
	default:
		panic(err.Ended)
	}
	panic(c.failed("backward", nil, err))
}

// Prepared is a backward that is still to be run. It holds the gradients that it starts from, and the graph, but not the outputs: who frees the handles on all of them lets go of each as soon as the
// backward is past it, where Backward, and whoever calls it, hold them to its end.
type Prepared struct {
	c      *Ctx
	handle uint64
}

// PrepareBackward makes a backward from outputs, with a gradient for each. Run it once, or Free it.
func (c *Ctx) PrepareBackward(outputs, grads []*Tensor) *Prepared {
	if len(outputs) != len(grads) {
		panic(&Error{Op: "backward", Device: c.device, Message: "outputs and gradients differ in number"})
	}
	handle, err := shim.PrepareBackward(handlesOf(outputs), handlesOf(grads))
	if err != nil {
		panic(c.failed("backward", outputs, err))
	}
	return &Prepared{c, handle}
}

// Run is Backward, on the context that made it. It frees the graph.
func (p *Prepared) Run() {
	handle := p.handle
	p.handle = 0
	if handle == 0 {
		panic("torch: a prepared backward is run twice, or after it was freed")
	}
	p.c.backwardFailed(shim.RunBackward(&p.c.mode, handle))
}

// Free drops a backward that is not run. It is idempotent.
func (p *Prepared) Free() {
	if p.handle != 0 {
		shim.DropBackward(p.handle)
		p.handle = 0
	}
}
