package engine

import (
	"penstock.example/internal/shim"
	"penstock.example/torch"
)

// Prepared is a backward that was not run yet. It holds the graph and the outputs' gradients, but
// not the outputs. If an output's handle is freed, its memory is free as soon as the backward has
// used it. torch.Ctx.Backward holds all outputs to its end.
type Prepared struct {
	c      *torch.Ctx
	handle uint64
}

// PrepareBackward prepares a backward from outputs with gradients. Call Run or Free once.
func PrepareBackward(c *torch.Ctx, outputs, grads []*torch.Tensor) *Prepared {
	handle, err := shim.PrepareBackward(c.Mode(), torch.Handles(outputs), torch.Handles(grads[:len(outputs)]))
	c.Check("backward", err, outputs...)
	return &Prepared{c, handle}
}

// Split divides the backward: p keeps the input gradients, and the result, run after p, adds the
// weight gradients (Qi et al., "Zero Bubble Pipeline Parallelism", 2023). Run or Free each of them
// once. Only Free the result if p has failed.
//
// p computes the gradients of gates (Gate) and of the leaves in first, with all nodes on the way to
// them. Of products on the way (linear layers, convolutions, matrix products) p leaves the
// gradients of weights to the result, and also all nodes that lead to no gate and no leaf in first.
// Weights of other operators, such as norms, get their gradients in p. So do weights that a product
// and another operator share. If nothing leads to a gate, p does nothing.
//
// Both parts together compute the bits of the undivided backward with as many products. After p the
// result holds only the saved tensors and the gradient of each product. If it is freed, its weights
// get no gradients.
func (p *Prepared) Split(first ...*torch.Tensor) *Prepared {
	p.mustBePending()
	handle, err := shim.SplitBackward(p.c.Mode(), p.handle, torch.Handles(first))
	p.c.Check("backward", err, first...)
	return &Prepared{p.c, handle}
}

// Run runs the backward on the context that prepared it, and frees the graph. It blocks and fails
// as torch.Ctx.Backward does.
func (p *Prepared) Run() {
	p.mustBePending()
	p.c.EndBackward(shim.RunBackward(p.c.Mode(), p.takeHandle()))
}

func (p *Prepared) mustBePending() {
	if p.handle == 0 {
		panic("engine: use of a backward that was run or freed")
	}
}

// Free drops the backward if it was not run.
func (p *Prepared) Free() {
	if p != nil && p.handle != 0 {
		shim.DropBackward(p.takeHandle())
	}
}

func (p *Prepared) takeHandle() (handle uint64) {
	handle, p.handle = p.handle, 0
	return handle
}

// Sequence returns the sequence number of the next autograd node recorded on this OS thread. Two
// readings enclose the numbers of nodes recorded in between, so that a failure in backward
// (torch.Error.Sequence) can be traced to the layer of the node. The thread must be locked.
func Sequence() uint64 { return shim.Sequence() }
