// Package pipe trains a model as a pipeline of micro-batches: it cuts a Sequential over devices and
// runs programs of package schedule on it.
//
//	p, err := pipe.New(model, pipe.Config{Balance: []int{5, 6}, Chunks: 8})
//	defer p.Close()
//	result, err := p.Step(ctx, pipe.Batch{Input: x, Target: y, Step: n}, loss)
//
// Each device has one worker, a goroutine locked to an OS thread. A worker performs its list of
// actions; micro-batches move between the workers.
//
//	action   what the worker does                             what it frees
//	0>1F2    copies what stage 0 sent of micro-batch 2        the sender's copy, unless the
//	                                                          sender's graph needs it
//	1F2      runs the stage's layers; without a graph if      all intermediates, and the input
//	         micro-batch 2 is recomputed later                unless it is recomputed from
//	1F2>3    sends the output or skips to stage 3
//	1R2      runs the layers again, with a graph
//	2>1B2    copies the gradients that stage 2 sent           the sender's copy
//	1B2      runs backward from the gradients                 graph, inputs, outputs
//	1I2      of it, the gradients of what stage 1 received    all but what 1W2 needs
//	1W2      the rest: the gradients of parameters            graph, inputs, outputs
//	1B2>0    sends the gradients of what stage 0 sent
//
// The lists are a program: that of a schedule (Config.Schedule), such as GPipe or 1F1B, or any other
// that schedule.Check passes. Stages on one device share its worker, which interleaves their actions
// as the program says.
//
// A value is a tensor or a tuple of tensors of any types; see Batch. A skip connection
// (nn.Ctx.Stash) may cross any number of stages. A parameter that modules on several stages share
// (nn.Base.Share) lives on the first of them. The others work on replicas, which are made equal to
// it at the beginning of every run.
//
// The autograd graph is cut between stages, so the backward of a stage is an ordinary call on its
// worker. Stages therefore overlap in backward on CPU too, where libtorch runs a backward on the thread
// that calls it.
//
// Results are bit-equal whatever the balance, the schedule, the policy and the number of stages, for
// the same number of micro-batches and threads. For this, backward runs in ascending order of
// micro-batches on every stage, and random numbers are derived from seed, step, micro-batch and
// layer name. Outputs of layers and gradients of inputs are contiguous, with or without a cut: nn.Ctx
// copies others.
//
// With one stage the peak of a device is the same in every run. With several it may differ by the
// activations and gradients that neighbours have not received yet; see Pipe.SafeLimit.
package pipe
