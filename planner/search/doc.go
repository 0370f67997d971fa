// Package search chooses how to train: the schedule, how many stages each device has, where the model is
// cut, how many micro-batches there are, what is recomputed, how many threads a device has, and how many
// replicas run side by side, so that a step is shortest and no device exceeds its bytes.
//
// A [Profile] says what the model's units cost, a [Machine] what there is to run on, [Wishes] what is
// decided already. [Search] returns the best [Plan], a bound that no plan of the searched space is below,
// and a plan of every schedule with the reason why it was not taken. Under limits that is the schedule's best only
// as long as none was found that is better than all of it.
//
// # The searched space
//
// Devices are taken in the order in which the machine lists them. A stage is one or more units. What a
// device recomputes is what [planner.SolveFirst] plans for its stages in the order of the program. The time
// of a plan is that of [schedule.Simulate], in whole nanoseconds; its peaks are those of the planner. The
// cut that is found is then planned within fewer bytes too, and for links on which nothing waits. Stages of
// more than [solver.RoughLayers] units are planned by coarse tables while cuts are compared: bounds are of such
// plans, finer ones may take some thousandths less, and nothing is called proved.
//
// # How it searches
//
// Each schedule, number of devices, stages, micro-batches, threads and replicas is a space of its own, in
// which only the cut is to be found. A bound of a device says that a step cannot be shorter, whatever
// the other devices have:
//
//	what must precede its first action + its load + what must follow its last + the gaps that nothing can fill
//
// With one stage on each device dynamic programming over (device, first unit) finds the cut whose
// greatest bound is least, which is a bound of the whole space. A search over cuts in depth, the least
// bound first, then simulates the cuts whose bounds are below the best plan's time. When none is left,
// that plan is proved best. GPipe on links that cost nothing has a closed form: the times of all stages,
// and of all micro-batches but one on the slowest forward and the slowest backward. With several stages on
// each device there is no small state: cuts are listed in depth, and cut off by the same bounds.
//
// Under a limit the bounds know at first what no recomputation can avoid (see held). A device is
// planned, which is slow, only where it is on the cut that looks best. Equal blocks are planned once.
//
// Where no plan fits, the least limit that would do is searched in the same way: the cut whose device that needs
// most needs least. Bytes take the place of times, and what no plan avoids that of bounds (see lean).
//
// The package is pure. All its functions may be called at the same time.
package search
