package engine

import (
	"penstock.example/internal/shim"
	"penstock.example/torch"
)

// Prepared is a backward that was not run yet. It holds the graph and the gradients that it starts
// from, but not the outputs. Once their handles are freed, each output is freed as soon as the
// backward has used it. torch.Ctx.Backward holds them to its end.
type Prepared struct {
	c      *torch.Ctx
	handle uint64
}

// PrepareBackward prepares a backward from outputs, with a gradient for each. Call Run or Free
// once.
func PrepareBackward(c *torch.Ctx, outputs, grads []*torch.Tensor) *Prepared {
	handle, err := shim.PrepareBackward(c.Mode(), handlesOf(outputs), handlesOf(grads[:len(outputs)]))
	c.Check("backward", err, outputs...)
	return &Prepared{c, handle}
}

// Split divides the backward: p keeps the gradients that others wait for, and the result, which is
// run after p, adds those of the weights (Qi et al., "Zero Bubble Pipeline Parallelism", 2023). Run
// or Free each of them once. Only Free the result if p has failed.
//
// Others wait for the gradients of gates (Gate) and of the leaves in first. All that leads to
// them is run by p. Where a product of tensors (a linear layer, a convolution, a matrix product) is
// a step on that way and has a weight, the weight's gradient is for later, and so is all that leads
// to none of them. Weights of other operators, such as norms, get their gradients in p, and so does
// a weight that both kinds use. If nothing leads to a gate, p does nothing.
//
// Both parts together compute what p would have computed, to the bit, and multiply as often. After
// p the result holds each product's saved tensors and its gradient, and nothing else of the
// graph. Freeing the result leaves those weights without their gradients.
func (p *Prepared) Split(first ...*torch.Tensor) *Prepared {
	p.mustBeThere()
	handle, err := shim.SplitBackward(p.c.Mode(), p.handle, handlesOf(first))
	p.c.Check("backward", err, first...)
	return &Prepared{p.c, handle}
}

// Run runs the backward on the context that prepared it, and frees the graph. It blocks and fails
// as torch.Ctx.Backward does.
func (p *Prepared) Run() {
	p.mustBeThere()
	p.c.EndBackward(shim.RunBackward(p.c.Mode(), p.release()))
}

func (p *Prepared) mustBeThere() {
	if p.handle == 0 {
		panic("engine: use of a backward that was run or freed")
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
	return handle
}

// Sequence returns the number that autograd will give the next node recorded on this OS thread.
// Nodes recorded between two readings have numbers in between. That is how a failure in backward
// (torch.Error.Sequence) is traced to the layer that recorded the node. It is only meaningful on a locked
// thread.
func Sequence() uint64 { return shim.Sequence() }
