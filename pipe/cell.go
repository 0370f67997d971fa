package pipe

import (
	"sync/atomic"

	"penstock/segment"
	"penstock/torch"
)

// cell is what a stage holds of a micro-batch between actions. All tensors are kept (torch.Ctx.Keep). A tensor that stands in a tuple twice is the same pointer twice.
type cell struct {
	walk    segment.Walk
	in      segment.Arrival // what the stage before sent, until the walk has it; on the first stage the batch's views are used
	sent    []*torch.Tensor // the stage's output where forward kept no graph: it waits for the next stage, or to be gathered
	out     []*torch.Tensor // the walk's: the stage's output, or the loss, with the graph that backward needs
	outGrad []*torch.Tensor // by output; nil where there is none
	inGrad  []*torch.Tensor // by input
	ports   []passage       // by port of the stage
	ties    []carried       // by tie of the stage
	loss    float64
}

// passage is a skip on its way through a stage's port.
type passage struct {
	in      *torch.Tensor     // what was sent here, until the walk has it, or it goes on
	wants   bool              // a gradient is wanted of it
	sent    *torch.Tensor     // without a graph: waits for the stages that it goes to
	pending atomic.Int32      // how many of those, which take it at the same time, have still to
	out     *torch.Tensor     // the walk's: stashed here, with its graph
	grads   [][]*torch.Tensor // by target: the gradients of the pops there and beyond, in the order of the pops
	back    []*torch.Tensor   // those of the pops here and beyond, on their way to where the skip came from
}

// carried is the gradient of a parameter that several stages use.
type carried struct {
	later *torch.Tensor // of the uses on later stages
	back  *torch.Tensor // with those on this one, on its way to the stage before
}

func (c *cell) init(s *Stage, part *segment.Segment) {
	c.walk.Begin(part)
	if n := len(s.ports); n > 0 {
		c.ports = make([]passage, n)
		for i, p := range s.ports {
			c.ports[i].grads = make([][]*torch.Tensor, len(p.to))
		}
	}
	if n := len(s.ties); n > 0 {
		c.ties = make([]carried, n)
	}
}

// free lets go of everything but the loss.
func (c *cell) free() {
	c.walk.Free()
	for _, list := range [][]*torch.Tensor{c.in.Tensors, c.sent, c.outGrad, c.inGrad} {
		torch.FreeAll(list)
	}
	for i := range c.ports {
		p := &c.ports[i]
		p.in.Free()
		p.sent.Free()
		torch.FreeAll(p.back)
		for k := range p.grads {
			torch.FreeAll(p.grads[k])
			p.grads[k] = nil
		}
		*p = passage{grads: p.grads}
	}
	for _, t := range c.ties {
		t.later.Free()
		t.back.Free()
	}
	clear(c.ties)
	c.in, c.sent, c.out, c.outGrad, c.inGrad = segment.Arrival{}, nil, nil, nil, nil
}
