package schedule

import "time"

// Links is the cost of moving values between workers, for a simulation. The zero value costs
// nothing. Transfers between stages of one worker are always free.
//
// A value that leaves at time t arrives at t + a + b, where a is the latency and b the value's
// bytes over the bandwidth (Hockney, 1994, Parallel Computing 20, p. 389). Until t + b nothing else
// leaves on the link from this worker to that one. The sender goes on meanwhile. The receiver waits
// if it comes to the receive before the value. If the program's capacity makes a sender wait for a
// receive, it goes on one latency after the receive.
type Links struct {
	// Cost is the cost of a send between two workers, not negative. Nil is free.
	Cost func(send Action) Transfer
}

// Transfer is the cost of moving a value.
type Transfer struct {
	Latency  time.Duration // from when it leaves until its first byte arrives
	Duration time.Duration // from its first byte to its last: their number over the bandwidth
}

// costOf returns the cost of a transfer's value, given its send or its receive.
func (l Links) costOf(a Action) (cost Transfer) {
	if a.Kind.Receive() {
		a = a.Matching()
	}
	if l.Cost != nil {
		cost = l.Cost(a)
	}
	return cost
}

// Unit is the duration of an action if computations take equally long and transfers take no time.
func Unit(a Action) time.Duration {
	if a.Kind.Transfer() {
		return 0
	}
	return time.Millisecond
}

// usualDuration is [Unit], but a whole backward takes twice as long as each of its parts.
func usualDuration(a Action) time.Duration {
	if a.Kind == Backward {
		return 2 * time.Millisecond
	}
	return Unit(a)
}

// Simulation simulates steps of one program, each with its own durations and links. It is read-only
// and may be used by several goroutines.
//
// A worker starts an action as soon as its previous action and the dependencies are done. A
// reduction starts when its worker comes to it and the worker's previous reduction has ended. The
// worker continues at once.
type Simulation struct {
	program *Program
	order   []simulated
	links   int // number of directed links between two workers
}

// simulated is an action. Simulation.order has each after its dependencies.
type simulated struct {
	worker, at int32 // the action is the at-th of its worker
	link       int32 // the link of a send to another worker, from 1; otherwise 0
	// after is the place in the order, from 1, of a dependency on another worker; 0 is none. For a
	// receive it is the send, and for a send with capacity c the receive of the c-th send before.
	after int32
}

// NewSimulation makes the simulation of a program. It fails with the error of [Check].
func NewSimulation(p *Program) (*Simulation, error) {
	c, err := newChecker(p)
	if err != nil {
		return nil, err
	}
	s := c.simulation()
	if len(s.order) < len(c.Actions) || c.err() != nil {
		c.checkProgress()
		return nil, c.err()
	}
	return s, nil
}

// simulation orders the actions as far as workers get.
func (g *Graph) simulation() *Simulation {
	s := &Simulation{program: g.program, order: make([]simulated, 0, len(g.Actions))}
	place := make([]int32, len(g.Actions)) // by id: the place in the order, from 1
	links := map[[2]int]int32{}            // by sending and receiving worker
	g.advance(func(id int, deps []int) {
		a, w := g.Actions[id], g.Worker[id]
		e := simulated{worker: int32(w), at: int32(g.indexInWorker(id))}
		if a.Kind.Transfer() {
			if other, ok := g.IndexOf(a.Matching()); ok && a.Kind.Send() && g.Worker[other] != w {
				ends := [2]int{w, g.Worker[other]}
				if links[ends] == 0 {
					links[ends] = int32(len(links) + 1)
				}
				e.link = links[ends]
			}
			for _, dep := range deps { // at capacity Meet, Run delays the sender at the receive instead
				if g.Worker[dep] != w && (a.Kind.Receive() && g.Actions[dep] == a.Matching() ||
					a.Kind.Send() && s.program.Capacity > 0) {
					e.after = place[dep]
				}
			}
		}
		s.order = append(s.order, e)
		place[id] = int32(len(s.order))
	})
	s.links = len(links)
	return s
}

// Actions returns the number of actions.
func (s *Simulation) Actions() int { return len(s.order) }

// Run simulates a step and returns its duration. duration is called once for each action and must
// not return less than zero. visit may be nil. It is called for each action, the at-th of its
// worker, after its dependencies.
func (s *Simulation) Run(duration func(Action) time.Duration, links Links,
	visit func(worker, at int, start, end time.Duration)) (makespan time.Duration) {
	p := s.program
	free := make([]time.Duration, len(p.Workers))    // by worker: when it can go on
	reduced := make([]time.Duration, len(p.Workers)) // by worker: when its last reduction ends
	busy := make([]time.Duration, s.links)           // by link: when it can take the next value
	ends := make([]time.Duration, len(s.order))      // of a send to another worker: when its value arrives
	for at := range s.order {
		e := &s.order[at]
		a, w := p.Workers[e.worker][e.at], e.worker
		start := free[w]
		switch {
		case a.Kind == Reduce:
			start = max(start, reduced[w])
		case e.after > 0 && a.Kind.Send(): // a waiting value has been received
			start = max(start, ends[e.after-1]+links.costOf(a).Latency)
		case e.after > 0:
			start = max(start, ends[e.after-1])
		}
		end := start + duration(a)
		if a.Kind == Reduce {
			reduced[w] = end
		} else {
			free[w] = end
		}
		ends[at] = end
		if e.after > 0 && a.Kind.Receive() && p.Capacity == Meet && a.distance() == 1 { // the sender goes on
			sender := &free[s.order[e.after-1].worker]
			*sender = max(*sender, end+links.costOf(a).Latency)
		}
		if e.link > 0 {
			cost := links.costOf(a)
			busy[e.link-1] = max(busy[e.link-1], end) + cost.Duration
			ends[at] = busy[e.link-1] + cost.Latency
		}
		makespan = max(makespan, end)
		if visit != nil {
			visit(int(w), int(e.at), start, end)
		}
	}
	return makespan
}

// Simulate returns the timeline of a program on links that cost nothing; see [Simulation]. Each
// event comes after the events that it depends on. It fails with the error of [Check].
func Simulate(p *Program, duration func(Action) time.Duration) (Timeline, error) {
	return Links{}.Simulate(p, duration)
}

// Simulate is the function [Simulate] on these links.
func (l Links) Simulate(p *Program, duration func(Action) time.Duration) (Timeline, error) {
	s, err := NewSimulation(p)
	if err != nil {
		return Timeline{}, err
	}
	t := Timeline{Workers: len(p.Workers)}
	s.Run(duration, l, func(w, at int, start, end time.Duration) {
		t.Events = append(t.Events, Event{Worker: w, Action: p.Workers[w][at], Start: start, End: end})
	})
	return t, nil
}
