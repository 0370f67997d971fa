package torch

import (
	"penstock/internal/arg"
	"penstock/internal/shim"
)

// Node is what stands behind tensors that Attach has put into a graph.
type Node interface {
	// Backward goes through what is behind the outputs, inside of the Backward that was called. c is a context with the device, threads and autocast that Attach was called under, grad off; what it owns
	// goes when Backward returns. A panic, or Goexit, is one of the Backward that was called first; the sequence number of an *Error becomes that of the node.
	Backward(c *Ctx, arrival *Arrival)
	// Forget is called once, on any thread, when Backward will not be called again: the graph has been let go of, by a backward that did not keep it or for good. It must not use a context.
	Forget()
}

// Arrival is a backward that has come to a node.
type Arrival struct {
	// Grads are the gradients of the outputs, nil where none has come. They are kept, and nobody else holds them: their memory is free when Node.Backward has freed them. What it leaves is freed for it.
	Grads []*Tensor
	// Wanted says whose gradients the graph goes on with, by input.
	Wanted []bool
	// Last says that the graph is not kept: there will be no other backward through it.
	Last bool
	// InputGrads is for Node.Backward to fill, by input, with tensors of any owner. It may leave nil.
	InputGrads []*Tensor
}

// Attach puts outputs, which were computed without a graph, under one node of the graph, as if it had computed them from inputs: backward through them is n's. The result has the memory of outputs and
// belongs to c; the node holds neither inputs nor outputs. Elements may be nil, and of outputs also of types without gradients, which stay outside of the graph.
func (c *Ctx) Attach(inputs, outputs []*Tensor, n Node) []*Tensor {
	arg.Must(n, "torch: Attach: the node", "what is to stand behind the outputs")
	return c.ownAll(c.attach("attach", false, inputs, outputs, func(c *Ctx, r *shim.Recomputation) { arrive(c, r, n) }, n.Forget))
}

func arrive(c *Ctx, r *shim.Recomputation, n Node) {
	a := &Arrival{Grads: make([]*Tensor, len(r.Grads)), Wanted: r.Wanted, Last: r.Last, InputGrads: make([]*Tensor, len(r.InputGrads))}
	arrived := make([]*Tensor, len(r.Grads))
	for i, h := range r.Grads {
		if h != 0 {
			arrived[i] = c.Keep(c.own(h))
			r.Grads[i] = 0
		}
	}
	copy(a.Grads, arrived)
	defer func() {
		for _, g := range arrived {
			g.Free()
		}
	}()
	n.Backward(c, a)
	for i, g := range a.InputGrads {
		if g != nil {
			shim.Retain(g.handle())
			r.InputGrads[i] = g.h
		}
	}
}

// attach makes the node of Attach, or of a checkpoint, which holds its inputs. run is given a context of its own.
func (c *Ctx) attach(op string, hold bool, inputs, outputs []*Tensor, run func(c *Ctx, r *shim.Recomputation), forget func()) []shim.Handle {
	options := Options{Device: c.device, Threads: int(c.mode.Threads), Autocast: c.Autocast()}
	attached, err := shim.Checkpoint(&c.mode, hold, handlesOf(inputs), handlesOf(outputs), func(r *shim.Recomputation) {
		c := NewCtx(options)
		defer c.Close()
		defer func() {
			if p := recover(); p != nil {
				if e, ok := p.(*Error); ok {
					e.Sequence = r.Sequence
				}
				panic(p)
			}
		}()
		run(c, r)
	}, forget)
	if err != nil {
		panic(c.failed(op, inputs, err))
	}
	return attached
}
