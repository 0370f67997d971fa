package schedule

import (
	"fmt"
	"time"

	"penstock/internal/arg"
)

// Unit is the duration of an action when all computations take as long as each other and transfers take no time.
func Unit(a Action) time.Duration {
	if a.Kind.Transfer() {
		return 0
	}
	return time.Millisecond
}

// parts is the duration of an action where forwards, recomputations and both parts of a backward take as long as each
// other, so that a whole backward takes twice as long, and transfers take no time.
func parts(a Action) time.Duration {
	if a.Kind == Backward {
		return 2 * time.Millisecond
	}
	return Unit(a)
}

// Simulate returns the timeline that the program has if every action takes the duration given for it: a worker starts
// an action as soon as it is through with the one before and all that the action needs is done. Workers never
// slow each other down otherwise. The function is called once for each action and must not return less than zero.
//
// Events are in an order in which each comes after those that it needed. A program that [Check] refuses is refused with
// the same error.
func Simulate(p *Program, duration func(Action) time.Duration) (Timeline, error) {
	if err := arg.Given(duration, "schedule: Simulate: the function of durations", "one such as Unit"); err != nil {
		return Timeline{}, err
	}
	n, err := newChecker(p)
	if err != nil {
		return Timeline{}, err
	}
	if n.lists(); n.err() != nil {
		n.progress(false)
		return Timeline{}, n.err()
	}
	t := Timeline{Workers: len(p.Workers), Events: make([]Event, 0, n.size())}
	var negative error
	n.simulate(func(a Action) time.Duration {
		d := duration(a)
		if d < 0 && negative == nil {
			negative = fmt.Errorf("schedule: simulate: %v takes %v, want no less than zero", a, d)
		}
		return d
	}, func(_, w int, a Action, start, end time.Duration) {
		t.Events = append(t.Events, Event{Worker: w, Action: a, Start: start, End: end})
	})
	if len(t.Events) < n.size() {
		n.progress(false)
		return Timeline{}, n.err()
	}
	if negative != nil {
		return Timeline{}, negative
	}
	return t, nil
}

// simulate visits the actions with their workers and times, each after those that it needs, as far as workers get.
func (n *numbered) simulate(duration func(Action) time.Duration, visit func(id, w int, a Action, start, end time.Duration)) {
	ends := make([]time.Duration, n.size())
	n.advance(false, func(id, w int, deps []int) {
		a := n.Workers[w][id-n.first[w]]
		var start time.Duration
		if id > n.first[w] {
			start = ends[id-1]
		}
		for _, dep := range deps {
			start = max(start, ends[dep])
		}
		ends[id] = start + duration(a)
		visit(id, w, a, start, ends[id])
	})
}
