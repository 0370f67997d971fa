package plan

import (
	"cmp"
	"fmt"
	"slices"

	"penstock.example/internal/arg"
	"penstock.example/schedule"
)

// Options are the decisions made before the search. The zero value, with a Batch, decides nothing.
type Options struct {
	// Batch is the rows of a step, over all replicas; 0 leaves them to MicroBatches. Micro-batches have
	// the measured rows.
	Batch        int
	MicroBatches []int    // of a replica; nil is any that Batch can be cut into, up to 16,384
	Devices      int      // in a pipeline; 0 is any number
	Schedules    []string // by name; nil is all of [schedule.Schedules]
	Virtual      []int    // stages of each device, for schedules of any number; nil is 2
	Replicas     []int    // nil is 1
	Limit        int64    // the most bytes of each device, if the machine has no lower limit; 0 is none
	State        int      // size of the optimizer state, in multiples of the weights
	// Plans is how many devices a search plans under limits in a space of cuts (see Search in the package's
	// doc); 0 is 400. For all spaces of a schedule it is at most three times as many.
	Plans int
	// Progress is called before each schedule is searched, with its name, and the number of schedules
	// done and in all. The search waits for it. It may be nil.
	Progress func(schedule string, done, all int)
}

// mostMicroBatches is the most micro-batches of a replica in a search. A search for 10,000 on two
// devices takes seconds.
const mostMicroBatches = 1 << 14

func (w Options) named() (list []schedule.Schedule, err error) {
	if w.Schedules == nil {
		return schedule.Schedules(), nil
	}
	for _, name := range w.Schedules {
		s, err := schedule.Named(name)
		if err != nil {
			return nil, refuse("Schedules", name, "", err.Error())
		}
		list = append(list, s)
	}
	return list, nil
}

func (w Options) check() error {
	if err := cmp.Or(arg.AtLeast("plan", "Batch", w.Batch, 0), arg.AtLeast("plan", "Devices", w.Devices, 0),
		arg.AtLeast("plan", "Limit", w.Limit, 0), arg.AtLeast("plan", "State", w.State, 0)); err != nil {
		return err
	}
	for field, list := range map[string][]int{"MicroBatches": w.MicroBatches, "Virtual": w.Virtual,
		"Replicas": w.Replicas} {
		for _, n := range list {
			if err := arg.Between("plan", field, n, 1, mostMicroBatches); err != nil {
				return err
			}
			if w.Batch > 0 && w.Batch%n != 0 && field != "Virtual" {
				return refuse(field, n, "", fmt.Sprintf("want divisors of the %d rows of a step", w.Batch))
			}
		}
	}
	if w.Batch == 0 && (len(w.MicroBatches) == 0 || len(w.Replicas) > 0 && slices.Max(w.Replicas) > 1) {
		return refuse("Batch", 0, "", "want the rows of a step; without them micro-batches, and one replica")
	}
	_, err := w.named()
	return err
}

func (w Options) report(schedule string, done, all int) {
	if w.Progress != nil {
		w.Progress(schedule, done, all)
	}
}

func (w Options) plans() int { return cmp.Or(w.Plans, 400) }
