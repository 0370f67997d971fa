// Package plan plans a training step of a pipe before anything runs.
//
// A [Problem] is the layers and the device of each stage, its measured costs, the bytes that its
// device may hold, and its policy of recomputation. [Solve] makes a [Plan] of it, or fails with a
// [MemoryError] that lists the stages which do not fit and the least limits that would do. A Plan has
// the program of every worker, the operations of every stage and micro-batch, and predictions of
// time and memory. It prints, parses and is checked.
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
// [Search] chooses a way to train a model of a [Profile] on a [Machine]: the schedule, the stages of
// each device, the cut, the number of micro-batches, the recomputations, the threads of a device, and
// the replicas, as far as [Options] leave them open. It returns the [Candidate] with the shortest step
// that it found, and a lower bound of all steps.
//
// Each schedule, number of devices, stages, micro-batches, threads and replicas is a space of cuts. A
// search begins with cuts of even times, of even bytes, and of an even bound of the step. It moves
// units between stages as long as that shortens the step, and begins again from cuts near the best.
// Of few cuts it looks at all. A step is what [schedule.Simulation] says. Under a limit the devices of
// a cut are planned by [Solve], equal blocks once; a cut that is no faster without any recomputation
// is not planned. If no cut fits, the search is for the one that needs the smallest part of the limit
// on its fullest device.
//
// # Cutting
//
// [Partition] cuts a list of layer costs into contiguous stages so that the cost of the costliest
// stage is the least possible. [ByTime] and [BySize] cut layers that were measured. There a stage
// costs more than the sum of its layers: values that cross its boundaries take time to move and bytes
// to hold.
//
//	counts, err := plan.Partition([]float64{1, 1, 1, 3, 1, 1}, 3) // [3 1 2]: stages of cost 3, 3 and 2
package plan
