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
	n, err := check(p, Limits{})
	if err != nil {
		return Timeline{}, err
	}
	t := Timeline{Workers: len(p.Workers), Events: make([]Event, 0, n.size())}
	var negative error
	n.simulate(func(a Action) time.Duration {
		d := duration(a)
		if d < 0 && negative == nil {
			negative = fmt.Errorf("schedule: simulate: %v takes %v, want no less than zero", a, d)
		}
		return d
	}, func(id int, a Action, start, end time.Duration) {
		t.Events = append(t.Events, Event{Worker: int(n.worker[id]), Action: a, Start: start, End: end})
	})
	if negative != nil {
		return Timeline{}, negative
	}
	return t, nil
}

// simulate visits the actions with their times, each after those that it needs. The program must get to its end.
func (n *numbered) simulate(duration func(Action) time.Duration, visit func(id int, a Action, start, end time.Duration)) {
	ends := make([]time.Duration, n.size())
	n.advance(false, func(id int, deps []int) {
		a := n.action(id)
		var start time.Duration
		if id > n.first[n.worker[id]] {
			start = ends[id-1]
		}
		for _, dep := range deps {
			start = max(start, ends[dep])
		}
		ends[id] = start + duration(a)
		visit(id, a, start, ends[id])
	})
}
