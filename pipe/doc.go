// Package pipe is the machine: it cuts a Sequential over devices and runs programs of package
// schedule on it.
//
//	p, err := pipe.New(model, pipe.Config{Balance: []int{5, 6}, Chunks: 8})
//	defer p.Close()
//	result, err := p.Step(ctx, pipe.Batch{Input: x, Target: y, Step: n}, loss)
//
// One worker per device, a goroutine locked to an OS thread, interprets the device's list of
// actions; micro-batches flow between them.
//
//	action   what the worker does                                                           what it lets go of
//	0>1F2    copies the activation of micro-batch 2, and skips popped here, to its device   the sender's, unless its graph needs it or others have still to take it
//	1F2      runs the stage's layers; without a graph if the cell is recomputed later       every intermediate, and the input unless it is recomputed
//	1R2      runs them again, with a graph
//	2>1B2    copies the gradients of the stage's outputs to its own device                  the sender's
//	1B2      Backward(outputs, gradients); what lies in the mailboxes goes upstream         graph, inputs, outputs
//	0>3F2    copies the skips from stage 0 that are popped on stage 3, straight             as 0>1F2
//	3>0B2    copies their gradients, and those of parameters that stage 3 shares with 0     as 2>1B2
//
// A value is a tensor or a tuple of tensors of any types; see Batch. A skip connection
// (nn.Ctx.Stash) may cross any number of stages. A parameter that modules on several stages share
// (nn.Base.Share) lives on the first; the others work on replicas, which follow it at the beginning
// of every run.
//
// The autograd graph is cut at stage boundaries, so a stage's backward is an ordinary call on its
// own worker: stages overlap in backward on CPU too, and the program, not autograd, owns the order.
// Backward runs in ascending order of micro-batches on every stage; together with random numbers
// that are derived from (seed, step, micro-batch, layer name) this makes results bit-equal whatever
// the balance, the policy and the number of stages, for the same number of micro-batches and
// threads.
//
// A device's peak is exact, and the same on every run with one stage. With several it may differ by
// the activations and gradients that neighbours have not yet taken over.
//
// The tempting alternative, one autograd graph through all stages with nodes that impose an order,
// gives no overlap on CPU, where libtorch runs a backward on the thread that asked for it.
package pipe
