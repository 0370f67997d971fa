// Package schedule plans a pipeline of micro-batches as data: a [Program] lists, for each worker,
// the actions it performs in order. A program prints, parses, diffs and draws; the machine that
// runs it only interprets it.
//
// The package knows integers and virtual time. It owns no tensors, no goroutines and no clock of
// the real world, and it measures nothing: durations are given to it.
//
//	program, err := schedule.GPipe(schedule.Config{Stages: 3, MicroBatches: 2})
//	...
//	fmt.Print(program)
//
//	program whole stages=3 micro-batches=2
//	worker 0: 0F0 0F0>1 0F1 0F1>1 1>0B0 0B0 1>0B1 0B1
//	worker 1: 0>1F0 1F0 1F0>2 0>1F1 1F1 1F1>2 2>1B0 1B0 1B0>0 2>1B1 1B1 1B1>0
//	worker 2: 1>2F0 2F0 1>2F1 2F1 2B0 2B0>1 2B1 2B1>1
//
// Stages share nothing: values are sent (0F0>1) and received (0>1F0) over links. Skips are declared,
// and have links of their own (0F0>2, 0>2F0).
//
// [Check] lists the faults of a program, [InFlight] counts the micro-batches that it holds, and
// [Simulate] gives the [Timeline] that it would have, on [Links] that may cost something. A
// recorded run has a Timeline too, and [Timeline.Grid] draws both.
//
// A schedule is a [Generator]. Whatever the schedule, backward goes upwards through the
// micro-batches, unlike in the paper of GPipe and in torchgpipe: gradients are sums of floats, so only
// a fixed order of summation makes results bit-equal whatever the partition, the policy and the
// schedule. A schedule decides the order of each worker's computations. The places of sends and
// receives follow from it, by one rule for all schedules.
package schedule
