package pipe

import (
	"penstock/segment"
	"penstock/torch"
)

// cell is what a stage holds of a micro-batch between actions; nobody else touches it. All tensors
// are kept (torch.Ctx.Keep). A tensor that stands in a tuple twice is the same pointer twice.
type cell struct {
	execution segment.Execution
	// what the stage was sent, until the execution has it: by the stage before, or on the first
	// stage views of the batch
	in segment.Arrival
	// the stage's output where forward kept no graph: it is to be sent to the next stage, or
	// gathered
	sent []*torch.Tensor
	// the execution's: the stage's output, or the loss, with the graph that backward needs
	out     []*torch.Tensor
	outGrad []*torch.Tensor // by output; nil where there is none
	inGrad  []*torch.Tensor // by input
	ports   []passage       // by port of the stage
	ties    []carried       // by tie of the stage
	loss    float64
}

// passage is a skip on its way through a stage's port.
type passage struct {
	in    *torch.Tensor     // what was received, until the execution has it
	wants bool              // a gradient is wanted of it
	sent  *torch.Tensor     // stashed here, without a graph: is to be sent to the stages that it goes to
	left  int               // how many of those it has still to be sent to
	out   *torch.Tensor     // the execution's: stashed here, with its graph
	grads [][]*torch.Tensor // by target: the gradients of the pops there, in the order of the pops
	back  []*torch.Tensor   // those of the pops here, which are to be sent to where the skip came from
}

// carried is the gradient of a parameter that several stages use.
type carried struct {
	later *torch.Tensor // of the uses on later stages
	back  *torch.Tensor // with those on this one, on its way to the stage before
}

func (c *cell) init(s *Stage) {
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
	c.execution.Free()
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
