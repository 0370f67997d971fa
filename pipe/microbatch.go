package pipe

import (
	"penstock/segment"
	"penstock/torch"
)

// microBatchState is what a stage holds of a micro-batch between actions. Only the worker of the
// stage uses it. All tensors are kept (torch.Ctx.Keep). A tensor that is in a tuple twice is the
// same pointer twice.
type microBatchState struct {
	execution segment.Execution
	// in is what the stage has received, until the execution takes it. On the first stage it has
	// views of the batch.
	in segment.Arrival
	// sent is the output of a forward without a graph, until it is sent to the next stage or
	// gathered.
	sent []*torch.Tensor
	// out is the output or the loss, with the graph for backward. It belongs to the execution.
	out     []*torch.Tensor
	outGrad []*torch.Tensor // by output; nil where there is none
	inGrad  []*torch.Tensor // by input
	skips   []skipState     // by skip of the stage
	ties    []tieState      // by tie of the stage
	loss    float64
}

// skipState is what a stage holds of a skip that leaves or enters it.
type skipState struct {
	in    *torch.Tensor     // what was received, until the execution takes it
	wants bool              // a gradient of it is wanted
	sent  *torch.Tensor     // stashed here without a graph, until it is sent
	left  int               // number of stages that it is still to be sent to
	out   *torch.Tensor     // stashed here with its graph; belongs to the execution
	grads [][]*torch.Tensor // by stage that pops it: the gradients, in the order of the pops
	back  []*torch.Tensor   // gradients of the pops here, until they are sent
}

// tieState is what a stage holds of the gradient of a parameter that several stages use.
type tieState struct {
	later *torch.Tensor // sum over the uses on later stages
	back  *torch.Tensor // later and the uses on this stage, until it is sent
}

func (c *microBatchState) init(s *Stage) {
	if n := len(s.skips); n > 0 {
		c.skips = make([]skipState, n)
		for i, p := range s.skips {
			c.skips[i].grads = make([][]*torch.Tensor, len(p.to))
		}
	}
	if n := len(s.ties); n > 0 {
		c.ties = make([]tieState, n)
	}
}

// free frees everything. The loss stays.
func (c *microBatchState) free() {
	c.execution.Free()
	for _, list := range [][]*torch.Tensor{c.in.Tensors, c.sent, c.outGrad, c.inGrad} {
		torch.FreeAll(list)
	}
	for i := range c.skips {
		p := &c.skips[i]
		p.in.Free()
		p.sent.Free()
		torch.FreeAll(p.back)
		for k := range p.grads {
			torch.FreeAll(p.grads[k])
			p.grads[k] = nil
		}
		*p = skipState{grads: p.grads}
	}
	for _, t := range c.ties {
		t.later.Free()
		t.back.Free()
	}
	clear(c.ties)
	c.in, c.sent, c.out, c.outGrad, c.inGrad = segment.Arrival{}, nil, nil, nil, nil
}
