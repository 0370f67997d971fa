// Package plan plans a training step of a pipe before anything runs.
//
// A [Problem] is the input: the layers and the device of each stage, its measured costs, the bytes
// that its device may hold, and its policy of recomputation. [Solve] makes a [Plan] of it, or fails
// with a [MemoryError] that lists the stages which do not fit and the least limits that would do. A
// Plan has the program of every worker, the operations of every stage and micro-batch, and
// predictions of time and memory. It prints, parses, is checked and is drawn.
//
// The package is pure: it has numbers and names, no tensors and no clocks. All its functions may be
// called at the same time.
//
// # Recomputation under a limit
//
// Each stage has a curve: plans of one micro-batch, from the one that recomputes nothing to the one
// of the fewest bytes. A device begins with nothing recomputed. Each step gives one micro-batch the
// point of its curve that costs least time for the bytes that it saves where the device holds most.
// The bytes come from a replay of the program, block by block. This walk does not know the limit.
// All devices of a pipe walk down together, and the plan is the state within the limits with the
// shortest step. So more bytes never give a slower plan of a program.
//
// # Search
//
// [Search] chooses a way to train: the schedule, the stages of each device, the cut of the
// model, the number of micro-batches, the recomputations, the threads of a device, and the
// replicas. A step is shortest, and no device exceeds its bytes.
//
// A [Profile] has the costs of the model's units, a [Machine] the devices and links, [Options] the
// decisions already made. [Search] returns the best [Candidate], a lower bound of all plans in the
// searched space, and for every schedule a plan with the reason why it was not taken. Under limits
// that is the schedule's best only until a better one of another schedule is known.
//
// # The searched space
//
// Stages are placed on devices in the machine's order. A stage is one or more units. [Solve] decides
// the recomputations of a device, in the order of the program. The time of a plan comes from
// [schedule.Simulation], in whole nanoseconds.
//
// # How it searches
//
// Each schedule, number of devices, stages, micro-batches, threads and replicas is a space of its
// own, in which only the cut is sought. A device alone bounds the step, whatever the other devices
// do:
//
//	time before its first action + its load + time after its last action + gaps that nothing can fill
//
// With one stage on each device dynamic programming over (device, first unit) finds the cut with
// the least greatest bound, which bounds the whole space. A search over cuts in depth, the least
// bound first, then simulates each cut with a bound below the best plan's time. If none is left,
// the plan is proved best. GPipe on free links has a closed form: the times of all stages, and for
// all micro-batches but one the slowest forward and the slowest backward. With several stages on
// each device no small state exists: cuts are listed in depth, and cut off by the same bounds.
//
// Under a limit the bounds first count the recomputation that no plan can avoid (leastRecomputation). Planning
// a device is slow, so only devices of the cut that looks best are planned. Equal blocks are
// planned once.
//
// If no plan fits, the search is for the cut that needs the smallest part of the limit on its
// fullest device, with bytes in place of times.
//
// # Cutting
//
// [Partition] cuts a list of layer costs into contiguous stages so that the bottleneck, the
// cost of the costliest stage, is the least possible. It is exact. It neither measures costs nor
// knows their unit: seconds, bytes and numbers of parameters all do.
//
//	counts, err := plan.Partition([]float64{1, 1, 1, 3, 1, 1}, 3) // [3 1 2]: stages of cost 3, 3 and 2
//
// [ByTime] and [BySize] cut layers that were measured. There a stage costs more than the sum of its
// layers: values that cross its boundaries take time to move and bytes to hold.
//
// A pipeline runs at the pace of its slowest stage, so the bottleneck comes first. Several
// partitions may reach it. The one with the least sum of squares keeps the other stages as small as
// possible.
package plan
