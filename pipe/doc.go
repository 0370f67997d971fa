// Package pipe is the machine: it cuts a Sequential over devices and runs programs of package schedule on it.
//
//	p, err := pipe.New(model, pipe.Config{Balance: []int{5, 6}, Chunks: 8})
//	defer p.Close()
//	result, err := p.Step(ctx, pipe.Batch{Input: x, Target: y, Step: n}, loss)
//
// One worker per device, a goroutine locked to an OS thread, interprets the device's list of actions; micro-batches flow between them.
//
//	action   what the worker does                                                           what it lets go of
//	0>1F2    copies the activation of micro-batch 2 to its own device, as a leaf            the sender's, unless its graph needs it
//	1F2      runs the stage's layers; without a graph if the cell is recomputed later       every intermediate
//	1R2      runs them again, with a graph
//	2>1B2    copies the gradient of the stage's output to its own device                    the sender's
//	1B2      Backward(output, gradient); the leaf's gradient is what goes upstream          graph, input, output
//
// The autograd graph is cut at stage boundaries, so a stage's backward is an ordinary call on its own worker: stages overlap in backward on CPU too,
// and the program, not autograd, owns the order. Backward runs in ascending order of micro-batches on every stage; together with random numbers
// that are derived from (seed, step, micro-batch, layer name) this makes results bit-equal whatever the balance, the policy and the number of stages, for
// the same number of micro-batches and threads.
//
// A device's peak is exact, and the same on every run with one stage. With several it may differ by the activations and gradients that neighbours have not yet taken over.
//
// The tempting alternative, one autograd graph through all stages with nodes that impose an order, gives no overlap on CPU, where libtorch runs a
// backward on the thread that asked for it.
package pipe
