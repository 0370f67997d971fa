package engine

import (
	"slices"

	"penstock.example/internal/shim"
	"penstock.example/torch"
)

// Node is an autograd node whose backward is Go code; see [Attach].
type Node interface {
	// Backward computes the gradients of the node's inputs. It runs inside the Backward that was
	// called. c is a context with the device, threads and autocast that Attach was called under,
	// grad off. It is closed when Backward returns.
	//
	// A panic or Goexit ends the Backward that was called first. The sequence number of an *torch.Error
	// becomes the node's.
	Backward(c *torch.Ctx, arrival *Arrival)
	// Forget is called once, on any thread, when Backward will not be called again: a backward that
	// did not keep the graph is over, or the graph was freed. It must not use a context.
	Forget()
}

// Arrival is the input and the result of a node's backward.
type Arrival struct {
	// Grads are the gradients of the outputs, nil where there is none. They are kept tensors that
	// nobody else holds, so freeing one in Node.Backward frees its memory. The rest are freed when
	// Node.Backward returns.
	Grads []*torch.Tensor
	// Wanted says, by input, whether its gradient is needed.
	Wanted []bool
	// Last says that the graph is not kept: no other backward will run through it.
	Last bool
	// InputGrads is filled by Node.Backward, by input, with tensors of any owner. Entries may stay
	// nil.
	InputGrads []*torch.Tensor
}

// Attach puts outputs, which were computed without a graph, under one node, as if the node had
// computed them from inputs. Backward through them calls n.
//
// The results share the memory of outputs and belong to c. The node holds neither inputs nor
// outputs. Elements may be nil. Outputs whose type has no gradients stay outside of the graph.
func Attach(c *torch.Ctx, inputs, outputs []*torch.Tensor, n Node) []*torch.Tensor {
	return ownAll(c, attach(c, "attach", false, inputs, outputs,
		func(c *torch.Ctx, r *shim.Recomputation) { arrive(c, r, n) }, n.Forget))
}

func arrive(c *torch.Ctx, r *shim.Recomputation, n Node) {
	arrived := ownAll(c, r.Grads)
	clear(r.Grads)
	for _, g := range arrived {
		c.Keep(g)
	}
	defer torch.FreeAll(arrived)
	a := &Arrival{Grads: slices.Clone(arrived), Wanted: r.Wanted, Last: r.Last,
		InputGrads: make([]*torch.Tensor, len(r.InputGrads))}
	n.Backward(c, a)
	for i, g := range a.InputGrads {
		if g != nil {
			shim.Retain(g.Handle())
			r.InputGrads[i] = g.Handle()
		}
	}
}

// attach makes the node of Attach or of a checkpoint. With hold the node keeps its inputs. run is
// given a context of its own.
func attach(c *torch.Ctx, op string, hold bool, inputs, outputs []*torch.Tensor,
	run func(c *torch.Ctx, r *shim.Recomputation), forget func(),
) []shim.Handle {
	options := torch.Options{Device: c.Device(), Threads: c.Threads(), Autocast: c.Autocast()}
	attached, err := shim.Checkpoint(c.Mode(), hold, handlesOf(inputs), handlesOf(outputs),
		func(r *shim.Recomputation) {
			c := torch.NewCtx(options)
			defer c.Close()
			defer func() {
				if p := recover(); p != nil {
					if e, ok := p.(*torch.Error); ok {
						e.Sequence = r.Sequence
					}
					panic(p)
				}
			}()
			run(c, r)
		}, forget)
	c.Check(op, err, inputs...)
	return attached
}
