// Package pipe trains an nn.Sequential as a pipeline of micro-batches. It cuts the model over
// devices and runs programs of package schedule.
//
//	p, err := pipe.New(model, pipe.Config{Balance: []int{5, 6}, Chunks: 8})
//	defer p.Close()
//	result, err := p.Step(ctx, pipe.Batch{Input: x, Target: y}, loss)
//
// Each device has one worker, a goroutine locked to an OS thread. A worker performs a list of
// actions on micro-batches, which move between the workers.
//
//	action   what the worker does                             what it frees
//	0>1F2    copies the values of micro-batch 2 from stage 0  the sender's copy, unless the
//	                                                          sender's graph needs it
//	1F2      runs the stage's layers; without a graph if      all intermediates; the input, too,
//	         micro-batch 2 is recomputed later                if nothing is recomputed from it
//	1F2>3    sends the output or skips to stage 3
//	1R2      runs the layers again, with a graph
//	2>1B2    copies the gradients from stage 2                the sender's copy
//	1B2      runs the whole backward                          graph, inputs, outputs
//	1I2      runs the backward of the inputs alone            everything that 1W2 does not need
//	1W2      then computes the gradients of parameters        graph, inputs, outputs
//	1B2>0    sends the gradients for stage 0
//
// The lists of all workers are a program. It comes from a schedule (Config.Schedule), such as GPipe
// or 1F1B, or is any other program that passes schedule.Check. Stages on one device share a worker,
// which interleaves their actions in the program's order.
//
// A skip connection (nn.Ctx.Stash) may cross any number of stages. A parameter that modules on
// several stages share (nn.Base.Share) lives on the first of these stages. The others have a
// replica of it. Every run first copies the parameter to the replicas.
//
// The autograd graph is cut between stages, so the backward of a stage is an ordinary call on its
// worker.
//
// Results for the same number of micro-batches and threads do not depend on balance, schedule,
// policy and number of stages, to the bit. Every stage goes backward in ascending order of
// micro-batches. Random numbers depend on seed, step, micro-batch and layer name. Outputs of layers
// and gradients of inputs are dense, with or without a cut: nn.Ctx copies tensors with gaps.
package pipe
