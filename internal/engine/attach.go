package engine

import (
	"slices"

	"penstock.example/internal/shim"
	"penstock.example/torch"
)

// Node is an autograd node with a backward in Go; see [Attach].
type Node interface {
	// Backward computes the gradients of the node's inputs, inside of a torch.Ctx.Backward. c has
	// the device, threads and autocast of Attach's context and grad off. It is closed when Backward
	// returns.
	//
	// A panic or Goexit ends the outermost torch.Ctx.Backward. The sequence number of a
	// *torch.Error becomes the node's.
	Backward(c *torch.Ctx, arrival *Arrival)
	// Forget is called once, on any thread, when Backward will not be called again, as the graph
	// was freed. It must not use a context.
	Forget()
}

// Arrival is the input and the result of a node's backward.
type Arrival struct {
	// Grads are the gradients of the outputs, nil if an output has none. They are kept tensors that
	// nobody else holds. Node.Backward may free them early.
	Grads  []*torch.Tensor
	Wanted []bool // by input: its gradient is needed
	Last   bool   // no other backward will run through the graph
	// InputGrads is filled by Node.Backward, by input, with tensors of any owner or nil.
	InputGrads []*torch.Tensor

	inputs []*torch.Tensor // of a checkpoint: handles outside of the graph, which require wanted gradients
}

// Attach makes one node of outputs, which were computed from inputs without a graph. Backward
// through its results calls n.
//
// The results share the memory of outputs and belong to c. The node holds neither inputs nor
// outputs. Elements may be nil. Outputs of types without gradients stay outside of the graph.
func Attach(c *torch.Ctx, inputs, outputs []*torch.Tensor, n Node) []*torch.Tensor {
	return attach(c, "attach", false, inputs, outputs, n)
}

// attach makes a node. With hold the node keeps its inputs. Each backward has its own context.
func attach(c *torch.Ctx, op string, hold bool, inputs, outputs []*torch.Tensor, n Node) []*torch.Tensor {
	options := torch.Options{Device: c.Device(), Threads: c.Threads(), Autocast: c.Autocast()}
	attached, err := shim.Checkpoint(c.Mode(), hold, torch.Handles(inputs), torch.Handles(outputs),
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
			runBackward(c, r, n)
		}, n.Forget)
	c.Check(op, err, inputs...)
	return c.OwnAll(attached)
}

func runBackward(c *torch.Ctx, r *shim.Recomputation, n Node) {
	grads := c.OwnAll(r.Grads)
	clear(r.Grads)
	for _, g := range grads {
		c.Keep(g)
	}
	defer torch.FreeAll(grads)
	a := &Arrival{Grads: slices.Clone(grads), Wanted: r.Wanted, Last: r.Last,
		InputGrads: make([]*torch.Tensor, len(r.InputGrads)), inputs: make([]*torch.Tensor, len(r.Inputs))}
	for i, h := range r.Inputs {
		if h != 0 {
			shim.Retain(h)
			a.inputs[i] = c.Own(h)
		}
	}
	n.Backward(c, a)
	for i, g := range a.InputGrads {
		if g != nil {
			shim.Retain(g.Handle())
			r.InputGrads[i] = g.Handle()
		}
	}
}
