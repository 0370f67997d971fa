package pipe

import (
	"slices"
	"sync/atomic"

	"penstock/nn"
	"penstock/torch"
)

// cell is what a stage holds of a micro-batch between actions. All tensors are kept (torch.Ctx.Keep). A tensor that stands in a tuple twice is the same pointer twice.
type cell struct {
	in      []*torch.Tensor // what the stage before sent, until it is needed no more; on the first stage the batch's views are used
	mail    []*torch.Tensor // by input: where backward leaves its gradient; nil where none is wanted
	sent    []*torch.Tensor // the stage's output where forward kept no graph: it waits for the next stage, or to be gathered
	out     []*torch.Tensor // the stage's output, or the loss, with the graph that backward needs
	outGrad []*torch.Tensor // by output; nil where there is none
	inGrad  []*torch.Tensor // by input
	ports   []passage       // by port of the stage
	ties    []carried       // by tie of the stage
	loss    float64
	ran     *nn.Ctx // of the forward that made out's graph, for errors of backward
}

// passage is a skip on its way through a stage's port.
type passage struct {
	in      *torch.Tensor     // what was sent here, until it is needed no more
	mail    []*torch.Tensor   // by pop
	sent    *torch.Tensor     // without a graph: waits for the stages that it goes to
	pending atomic.Int32      // how many of those, which take it at the same time, have still to
	out     *torch.Tensor     // stashed here, with its graph
	grads   [][]*torch.Tensor // by target: the gradients of the pops there and beyond, in the order of the pops
	back    []*torch.Tensor   // those of the pops here and beyond, on their way to where the skip came from
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
	for _, list := range [][]*torch.Tensor{c.in, c.mail, c.sent, c.out, c.outGrad, c.inGrad} {
		free(list)
	}
	for i := range c.ports {
		p := &c.ports[i]
		p.in.Free()
		p.sent.Free()
		p.out.Free()
		free(p.mail)
		free(p.back)
		for k := range p.grads {
			free(p.grads[k])
			p.grads[k] = nil
		}
		*p = passage{grads: p.grads}
	}
	for _, t := range c.ties {
		t.later.Free()
		t.back.Free()
	}
	clear(c.ties)
	*c = cell{loss: c.loss, ports: c.ports, ties: c.ties}
}

// drop frees what the stage was sent.
func (c *cell) drop() {
	free(c.in)
	c.in = nil
	for i := range c.ports {
		c.ports[i].in.Free()
		c.ports[i].in = nil
	}
}

func free(list []*torch.Tensor) {
	for _, t := range list {
		t.Free()
	}
}

// keep moves tensors out of the context. One that is not the context's, because a layer gave back what it was given or a parameter, is shared, so that every list is freed by itself.
func keep(c *torch.Ctx, list []*torch.Tensor) []*torch.Tensor {
	out := slices.Clone(list)
	for i, t := range list {
		switch k := slices.Index(list[:i], t); {
		case k >= 0:
			out[i] = out[k]
		case !c.Owns(t):
			out[i] = c.Keep(c.Share(t))
		default:
			out[i] = c.Keep(t)
		}
	}
	return out
}
