package schedule

import "time"

// Unit is the duration of an action if all computations take equally long and transfers take no
// time.
func Unit(a Action) time.Duration {
	if a.Kind.Transfer() {
		return 0
	}
	return time.Millisecond
}

// parts is the duration of an action if forwards, recomputations and both parts of a backward take
// equally long, a whole backward takes twice as long, and transfers take no time.
func parts(a Action) time.Duration {
	if a.Kind == Backward {
		return 2 * time.Millisecond
	}
	return Unit(a)
}

// Simulation simulates steps of one program, each with its own durations and links. It is read-only
// and may be used by several goroutines.
//
// A worker starts an action as soon as the one before is over and its dependencies are done. A
// reduction begins when its worker comes to it and the worker's reduction before has ended. The
// worker continues at once.
type Simulation struct {
	program *Program
	order   []simulated
	ways    int // directed links between two workers
}

// simulated is an action in an order in which the program can run.
type simulated struct {
	worker, at int32 // its place in the program
	way        int32 // of a send to another worker, from 1; otherwise 0
	// after is the place in the order, from 1, of a dependency on another worker: for a receive its
	// send, and for a send under a capacity of c values the receive of the c-th send before. 0 is
	// none.
	after int32
}

// NewSimulation makes the simulation of a program. It fails with the error of [Check] for a program
// that cannot run.
func NewSimulation(p *Program) (*Simulation, error) { return newSimulation(p, Limits{}) }

func newSimulation(p *Program, limits Limits) (*Simulation, error) {
	c, err := newChecker(p)
	if err != nil {
		return nil, err
	}
	if c.lists(); limits.InOrder {
		c.inOrder()
	}
	s := (*Simulation)(nil)
	if c.err() == nil {
		if s = c.simulation(); len(s.order) == c.size() {
			return s, nil
		}
	}
	c.progress(false)
	return nil, c.err()
}

// simulation orders the actions as far as workers get.
func (n *numbered) simulation() *Simulation {
	s := &Simulation{program: n.Program, order: make([]simulated, 0, n.size())}
	place := make([]int32, n.size()) // by id: the place in the order, from 1
	ways := map[[2]int32]int32{}
	n.advance(false, func(id, w int, deps []int) {
		a := n.action(id)
		e := simulated{worker: int32(w), at: int32(n.at(id))}
		if a.Kind.Transfer() {
			if other, ok := n.find(a.Matching()); ok && a.Kind.Send() && !n.on(other, w) {
				way := [2]int32{int32(w), n.worker[other]}
				if ways[way] == 0 {
					ways[way] = int32(len(ways) + 1)
				}
				e.way = ways[way]
			}
			for _, dep := range deps { // the worker has waited already for the receive of what it sent before
				if !n.on(dep, w) && (a.Kind.Receive() && n.action(dep) == a.Matching() || a.Kind.Send() && n.Capacity > 0) {
					e.after = place[dep]
				}
			}
		}
		s.order = append(s.order, e)
		place[id] = int32(len(s.order))
	})
	s.ways = len(ways)
	return s
}

func (s *Simulation) Actions() int { return len(s.order) }

// Run simulates a step and returns its duration. duration is called once for each action; neither
// it nor the links may return less than zero. visit, unless it is nil, is called for each action,
// the at-th of its worker, after its dependencies.
func (s *Simulation) Run(duration func(Action) time.Duration, links Links,
	visit func(worker, at int, start, end time.Duration)) (makespan time.Duration) {
	p := s.program
	free := make([]time.Duration, len(p.Workers))    // by worker: when it can go on
	reduced := make([]time.Duration, len(p.Workers)) // by worker: when its last reduction ends
	busy := make([]time.Duration, s.ways)            // by way: when it can take the next value
	ends := make([]time.Duration, len(s.order))      // of an action; of a send that has left: when its value arrives
	send := func(at int, from time.Duration, cost Transfer) {
		way := &busy[s.order[at].way-1]
		*way = max(*way, from) + cost.Bytes
		ends[at] = *way + cost.Latency
	}
	for at := range s.order {
		e := &s.order[at]
		a, w := p.Workers[e.worker][e.at], e.worker
		start := free[w]
		var posted time.Duration // of a receive that a send waits for: when the sender hears of it
		meets := false
		if e.after > 0 {
			from := int(e.after - 1)
			switch cost := links.of(a); {
			case a.Kind.Send(): // one of the values that may wait has been received
				start = max(start, ends[from]+cost.Latency)
			default:
				if meets = p.Capacity == Meet && a.distance() == 1; meets && links.Transport != Buffer {
					posted = max(ends[from], start+cost.Latency)
					send(from, posted, cost)
				}
				start = max(start, ends[from])
			}
		}
		took := duration(a)
		end := start + took
		if a.Kind == Reduce {
			start = max(start, reduced[w])
			end = start + took
			reduced[w] = end
		} else {
			free[w] = end
		}
		ends[at] = end
		switch {
		case meets: // the sender goes on
			sender := s.order[e.after-1].worker
			if links.Transport == Buffer {
				posted = end + links.of(a).Latency
			} else {
				posted += took
			}
			free[sender] = max(free[sender], posted)
		case e.way > 0 && !(p.Capacity == Meet && a.distance() == 1 && links.Transport != Buffer):
			send(at, end, links.of(a))
		}
		makespan = max(makespan, end)
		if visit != nil {
			visit(int(w), int(e.at), start, end)
		}
	}
	return makespan
}

// Simulate returns the timeline of a program with a duration for each action, if moving a value
// takes no time; see [Simulation]. duration is called once for each action.
//
// Each event comes after the events that it depends on. It fails with the error of [Check] for a
// program that cannot run.
func Simulate(p *Program, duration func(Action) time.Duration) (Timeline, error) {
	return Links{}.Simulate(p, duration)
}

// Simulate is the function [Simulate] on these links. Events are actions of workers; a value on its
// way is none. A program that FIFO links cannot run is refused too.
func (l Links) Simulate(p *Program, duration func(Action) time.Duration) (Timeline, error) {
	s, err := newSimulation(p, Limits{InOrder: l.Transport == FIFO})
	if err != nil {
		return Timeline{}, err
	}
	t := Timeline{Workers: len(p.Workers)}
	s.Run(duration, l, func(w, at int, start, end time.Duration) {
		t.Events = append(t.Events, Event{Worker: w, Action: p.Workers[w][at], Start: start, End: end})
	})
	return t, nil
}

// Predict returns the duration of a step, as [Simulate] finds it, and the share of it, from 0 to 1,
// in which workers are idle, on average. It keeps no timeline.
func Predict(p *Program, duration func(Action) time.Duration) (makespan time.Duration, idle float64, err error) {
	return Links{}.Predict(p, duration)
}

// Predict is the function [Predict] on these links.
func (l Links) Predict(p *Program, duration func(Action) time.Duration) (makespan time.Duration, idle float64, err error) {
	s, err := newSimulation(p, Limits{InOrder: l.Transport == FIFO})
	if err != nil {
		return 0, 0, err
	}
	var busy float64
	makespan = s.Run(duration, l, func(w, at int, start, end time.Duration) {
		if p.Workers[w][at].Kind != Reduce {
			busy += float64(end - start)
		}
	})
	if makespan > 0 {
		idle = max(0, 1-busy/(float64(makespan)*float64(len(p.Workers))))
	}
	return makespan, idle, nil
}
