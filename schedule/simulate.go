package schedule

import (
	"fmt"
	"time"

	"penstock.example/internal/arg"
)

// Unit is the duration of an action when all computations take as long as each other and transfers
// take no time.
func Unit(a Action) time.Duration {
	if a.Kind.Transfer() {
		return 0
	}
	return time.Millisecond
}

// parts is the duration of an action where forwards, recomputations and both parts of a backward
// take as long as each other, so that a whole backward takes twice as long, and transfers take no
// time.
func parts(a Action) time.Duration {
	if a.Kind == Backward {
		return 2 * time.Millisecond
	}
	return Unit(a)
}

// Simulate returns the timeline that the program has if every action takes the duration given for
// it, and moving a value takes no time: a worker starts an action as soon as it is through with the
// one before and all that the action needs is done. Workers never slow each other down otherwise.
// The function is called once for each action and must not return less than zero.
//
// A reduction begins when its worker comes to it and when the one before on that worker has ended.
// The worker goes on at once.
//
// Events are in an order in which each comes after those that it needed. A program that [Check]
// refuses is refused with the same error.
func Simulate(p *Program, duration func(Action) time.Duration) (Timeline, error) {
	return Links{}.Simulate(p, duration)
}

// Simulate is the function [Simulate] where values move over such links. Events are what workers
// do; a value that is on its way is none. A program that FIFO links cannot run is refused as well.
func (l Links) Simulate(p *Program, duration func(Action) time.Duration) (Timeline, error) {
	var t Timeline
	err := l.run("Simulate", p, duration, func(actions int) {
		t = Timeline{Workers: len(p.Workers), Events: make([]Event, 0, actions)}
	}, func(w int, a Action, start, end time.Duration) {
		t.Events = append(t.Events, Event{Worker: w, Action: a, Start: start, End: end})
	})
	if err != nil {
		return Timeline{}, err
	}
	return t, nil
}

// run checks and simulates a program for a function of that name: it says how many actions there
// are, then visits each.
func (l Links) run(name string, p *Program, duration func(Action) time.Duration, begin func(actions int), visit func(w int, a Action, start, end time.Duration)) error {
	if err := arg.Given(duration, "schedule: "+name+": the function of durations", "one such as Unit"); err != nil {
		return err
	}
	c, err := newChecker(p)
	if err != nil {
		return err
	}
	if c.lists(); l.Transport == FIFO {
		c.inOrder()
	}
	if c.err() != nil {
		c.progress(false)
		return c.err()
	}
	begin(c.size())
	var negative error
	done := 0
	c.simulate(func(a Action) time.Duration {
		d := duration(a)
		if d < 0 && negative == nil {
			negative = fmt.Errorf("schedule: simulate: %v takes %v, want no less than zero", a, d)
		}
		return d
	}, l.checked(&negative), func(_, w int, a Action, start, end time.Duration) {
		done++
		visit(w, a, start, end)
	})
	if done < c.size() {
		c.progress(false)
		return c.err()
	}
	return negative
}

// simulate visits the actions with their workers and times, each after those that it needs, as far
// as workers get.
func (n *numbered) simulate(duration func(Action) time.Duration, links Links, visit func(id, w int, a Action, start, end time.Duration)) {
	ends := make([]time.Duration, n.size())
	var reduced map[int]time.Duration // by worker: when its last reduction ends
	var f *flights
	if links.Cost != nil {
		f = n.flights(links, ends)
	}
	n.advance(false, func(id, w int, deps []int) {
		a := n.Workers[w][id-n.first[w]]
		var start time.Duration
		if id > n.first[w] {
			start = ends[id-1]
		}
		for _, dep := range deps {
			if f == nil || n.on(dep, w) {
				start = max(start, ends[dep])
			} else {
				start = max(start, f.before(id, w, dep))
			}
		}
		if a.Kind == Reduce {
			if reduced == nil {
				reduced = map[int]time.Duration{}
			}
			ends[id] = start
			start = max(start, reduced[w])
			reduced[w] = start + duration(a)
			visit(id, w, a, start, reduced[w])
			return
		}
		ends[id] = start + duration(a)
		if f != nil {
			f.done(id, w, start)
		}
		visit(id, w, a, start, ends[id])
	})
}

// Predict returns how long the program takes, as [Simulate] finds, and the share of that, from 0 to
// 1, in which its workers do nothing, on average. It keeps no timeline.
func Predict(p *Program, duration func(Action) time.Duration) (makespan time.Duration, idle float64, err error) {
	return Links{}.Predict(p, duration)
}

// Predict is the function [Predict] where values move over such links.
func (l Links) Predict(p *Program, duration func(Action) time.Duration) (makespan time.Duration, idle float64, err error) {
	var busy float64
	err = l.run("Predict", p, duration, func(int) {}, func(_ int, a Action, start, end time.Duration) {
		makespan = max(makespan, end)
		if a.Kind != Reduce {
			busy += float64(end - start)
		}
	})
	if err != nil {
		return 0, 0, err
	}
	if makespan > 0 {
		idle = max(0, 1-busy/(float64(makespan)*float64(len(p.Workers))))
	}
	return makespan, idle, nil
}
