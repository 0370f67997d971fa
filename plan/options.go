package plan

import (
	"fmt"

	"penstock.example/schedule"
)

// Options are the decisions made before the search. The zero value, with a Batch, decides nothing.
type Options struct {
	// Batch is the rows of a step, over all replicas. Micro-batches have the rows that were
	// measured. With 0 MicroBatches says how many run on one replica, of the rows that were
	// measured.
	Batch        int
	MicroBatches []int    // of a replica; nil is any that Batch can be cut into, up to MostMicroBatches
	Devices      int      // in a pipeline; 0 is any number
	Schedules    []string // by name; nil is all of [schedule.Schedules]
	Virtual      []int    // stages of each device, for schedules of any number; nil is 2
	Replicas     []int    // nil is 1
	// Limit is the most bytes of each device, in addition to the limits of the machine; 0 is none.
	Limit int64
	// State is the size of the optimizer state, in multiples of the weights.
	State int
	// Work is how many actions are simulated in a space before the search in it ends without a
	// proof; 0 is 4,000,000, or a thousand steps if devices have one stage. Plans is how many
	// devices are planned under limits in a space; 0 is 400. The spaces of a schedule with several
	// stages on each device have three times Plans in all.
	Work, Plans int
	// Progress is called before each schedule is searched, with its name, and the number of
	// schedules done and in all. It is called again for each schedule before its least limit is
	// searched. The goroutine that searches calls it and waits for it. It may be nil.
	Progress func(schedule string, done, all int)
}

// MostMicroBatches is the most micro-batches of a replica in a search. A search for 10,000 on two
// devices takes seconds.
const MostMicroBatches = 1 << 14

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
	for _, f := range []struct {
		field string
		value int64
	}{{"Batch", int64(w.Batch)}, {"Devices", int64(w.Devices)}, {"Limit", w.Limit},
		{"State", int64(w.State)}, {"Work", int64(w.Work)}, {"Plans", int64(w.Plans)}} {
		if f.value < 0 {
			return refuse(f.field, f.value, "", "want 0 or more")
		}
	}
	for _, f := range []struct {
		field string
		list  []int
	}{{"MicroBatches", w.MicroBatches}, {"Virtual", w.Virtual}, {"Replicas", w.Replicas}} {
		for _, n := range f.list {
			if n < 1 {
				return refuse(f.field, n, "", "want 1 or more")
			}
		}
	}
	if w.Batch == 0 && len(w.MicroBatches) == 0 {
		return refuse("Batch", 0, "", "want the rows of a step, or MicroBatches")
	}
	for _, r := range w.Replicas {
		if w.Batch == 0 && r > 1 {
			return refuse("Replicas", r, "", "want a Batch with it, which replicas share")
		}
		if w.Batch > 0 && w.Batch%r != 0 {
			return refuse("Replicas", r, "", fmt.Sprintf("want a divisor of the %d rows of a step", w.Batch))
		}
	}
	for _, m := range w.MicroBatches {
		if m > MostMicroBatches {
			return refuse("MicroBatches", m, "", fmt.Sprintf("want at most %d", MostMicroBatches))
		}
		if w.Batch > 0 && w.Batch%m != 0 {
			return refuse("MicroBatches", m, "", fmt.Sprintf("want divisors of the %d rows of a step", w.Batch))
		}
	}
	_, err := w.named()
	return err
}

func (w Options) report(schedule string, done, all int) {
	if w.Progress != nil {
		w.Progress(schedule, done, all)
	}
}

// plans returns how many devices may be planned in a space.
func (w Options) plans() int {
	if w.Plans == 0 {
		return 400
	}
	return w.Plans
}
