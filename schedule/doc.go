// Package schedule plans a pipeline of micro-batches as data: a [Program] lists, for each worker,
// the actions it performs in order. A program prints, parses, diffs and draws; the machine that
// runs it only interprets it.
//
// The package knows integers and virtual time. It has no tensors and no goroutines, and it measures
// nothing: the caller gives the durations.
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
// Stages share nothing: values are sent (0F0>1) and received (0>1F0) over links. Skips are
// declared, and have links of their own (0F0>2, 0>2F0).
//
// [Check] lists the faults of a program, [InFlight] counts the micro-batches that it holds, and
// [Simulate] predicts its [Timeline]; [Links] may have costs. A recorded run has a Timeline too,
// and [Timeline.Grid] draws both.
//
// A schedule is a [Generator]. It decides the order of each worker's computations, and one rule for
// all schedules places the sends and receives. In every schedule backward visits micro-batches in
// ascending order, unlike in GPipe's paper and in torchgpipe. Gradients are sums of floats: only a
// fixed order makes them bit-equal for every partition, policy and schedule.
package schedule
