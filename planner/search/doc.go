// Package search chooses a way to train: the schedule, the stages of each device, the cut of the
// model, the number of micro-batches, the recomputations, the threads of a device, and the
// replicas. A step is shortest, and no device exceeds its bytes.
//
// A [Profile] has the costs of the model's units, a [Machine] the devices and links, [Wishes] the
// decisions already made. [Search] returns the best [Plan], a lower bound of all plans in the
// searched space, and for every schedule a plan with the reason why it was not taken. Under limits
// that is the schedule's best only until a better one of another schedule is known.
//
// # The searched space
//
// Stages are placed on devices in the machine's order. A stage is one or more units.
// [planner.SolveFirst] decides the recomputations of a device, in the order of the program. The
// time of a plan comes from [schedule.Simulation], in whole nanoseconds, its peaks from the
// planner. The best cut is then planned within fewer bytes too, and for links on which nothing
// waits. While cuts are compared, stages of more than [solver.RoughLayers] units are planned by
// coarse tables. Bounds are then bounds of such plans: finer plans may take some thousandths less,
// and nothing counts as proved.
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
// Under a limit the bounds first count the recomputation that no plan can avoid (held.go). Planning
// a device is slow, so only devices of the cut that looks best are planned. Equal blocks are
// planned once.
//
// If no plan fits, the search is for the cut that needs the smallest part of the limit on its
// fullest device, with bytes in place of times (lightest.go).
//
// The package is pure. All its functions may be called at the same time.
package search
