// Package plan plans a training step of a pipe before anything runs.
//
// A [Problem] has the measured costs of each stage, its policy of recomputation, and devices with
// limits in bytes. [Solve] makes a [Plan] of it, or fails with a [MemoryError] that lists the stages
// which do not fit and the least limits that would do. A Plan has the program of every worker, the
// operations of every stage and micro-batch, and predictions of time and memory. It can be printed,
// parsed and checked.
//
// The package knows no tensors and no clocks. All its functions may be called at the same time.
//
// # Recomputation under a limit
//
// Each stage has a curve: plans of one micro-batch, from the one that recomputes nothing to the one
// of the fewest bytes. A device begins with nothing recomputed. Each step of its walk moves one
// micro-batch along its curve: the one that pays least time per byte saved at the device's peak.
// The bytes come from a replay of the program, block by block. All devices of a pipe walk down
// together, and the plan is the state within the limits with the shortest step. The walk does not know
// the limit, so more bytes never give a slower plan of a program.
//
// # Search
//
// [Search] chooses a way to train a model of a [Profile] on a [Machine]: the schedule, the stages of
// each device, the cut, the micro-batches, the recomputations, the threads of a device, and the
// replicas, as far as [Options] leave them open. It returns the [Candidate] with the shortest step that
// it found, and a lower bound of all steps.
//
// Each schedule, number of devices, stages, micro-batches, threads and replicas has a space of cuts. A
// search begins with cuts of even times, of even bytes, and of an even bound of the step. It moves
// units between stages as long as that shortens the step, by [schedule.Simulation], and begins again
// from cuts near the best. Few cuts are all tried. Under a limit [Solve] plans the devices of a cut,
// equal stages once. A cut that is no faster even without recomputation is not planned. If no cut fits,
// the search looks for the nearest one, with the smallest ratio of bytes needed to limit on any device.
//
// # Cutting
//
// [Partition] cuts a list of layer costs into contiguous stages so that the cost of the costliest
// stage is the least possible. [ByTime] and [BySize] cut measured layers. A stage then costs more than
// the sum of its layers: values that cross its boundaries take time to move and bytes to hold.
//
//	counts, err := plan.Partition([]float64{1, 1, 1, 3, 1, 1}, 3) // [3 1 2]: stages of cost 3, 3 and 2
package plan
