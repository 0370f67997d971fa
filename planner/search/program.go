package search

import (
	"slices"

	"penstock.example/schedule"
)

// compiled is a program as a list of actions, each after those that it needs, so that a step is
// simulated in one pass for each cut. It gives what [schedule.Links.Predict] does on links that take any
// number of values whenever they are sent, which the tests compare.
type compiled struct {
	stages, workers, ways int
	list                  []step
}

// step is an action.
type step struct {
	kind       schedule.Kind
	worker     int32
	stage      int32
	microBatch int32
	link       int32 // of a transfer: the earlier of its stages
	way        int32 // of a send: the number of its link from one worker to another
	send       int32 // of a receive: its send's position in the list
}

// move is what the transfers between a stage and the next take.
type move struct{ latency, activation, gradient int64 }

// compile puts the actions of a program into an order in which they can run.
func compile(p *schedule.Program) (*compiled, error) {
	line, err := schedule.Simulate(p, schedule.Unit)
	if err != nil {
		return nil, err
	}
	c := &compiled{stages: p.Stages, workers: len(p.Workers), list: make([]step, 0, len(line.Events))}
	sent := make([]int32, 2*p.Stages*p.MicroBatches)
	slot := func(kind schedule.Kind, from, i int) *int32 {
		at := from*p.MicroBatches + i
		if kind == schedule.SendGradient || kind == schedule.ReceiveGradient {
			at += p.Stages * p.MicroBatches
		}
		return &sent[at]
	}
	place, ways := p.Placement(), map[[2]int]int32{}
	for _, e := range line.Events {
		a := e.Action
		s := step{kind: a.Kind, worker: int32(e.Worker), stage: int32(a.Stage), microBatch: int32(a.MicroBatch), link: int32(min(a.Stage, a.Peer))}
		switch {
		case a.Kind.Send():
			*slot(a.Kind, a.Stage, a.MicroBatch) = int32(len(c.list))
			pair := [2]int{place[a.Stage], place[a.Peer]}
			if _, known := ways[pair]; !known {
				ways[pair] = int32(len(ways))
			}
			s.way = ways[pair]
		case a.Kind.Receive():
			s.send = *slot(a.Kind, a.Peer, a.MicroBatch)
		}
		c.list = append(c.list, s)
	}
	c.ways = len(ways)
	return c, nil
}

// run is the time of a step. Moves are by the earlier stage; nil is nothing.
func (c *compiled) run(times []stageTimes, moves []move) (end int64) {
	free := make([]int64, c.workers)
	reduced := make([]int64, c.workers)
	ends := make([]int64, len(c.list)) // of a send: when its value arrives
	busy := make([]int64, c.ways)      // when a link is free again
	for at := range c.list {
		e := &c.list[at]
		now := free[e.worker]
		t := &times[e.stage]
		switch e.kind {
		case schedule.Forward:
			if t.each != nil {
				now += t.each[e.microBatch].forward
			} else {
				now += t.forward
			}
		case schedule.Recompute:
			if t.each != nil {
				now += t.each[e.microBatch].recompute
			} else {
				now += t.recompute
			}
		case schedule.Backward, schedule.BackwardInput:
			if e.kind == schedule.Backward {
				now += t.second
			}
			if t.each != nil {
				now += t.each[e.microBatch].backward
			} else {
				now += t.backward
			}
		case schedule.BackwardWeight:
			now += t.second
		case schedule.SendActivation, schedule.SendGradient:
			ends[at] = now
			if moves != nil && moves[e.link] != (move{}) {
				m := &moves[e.link]
				bytes := m.activation
				if e.kind == schedule.SendGradient {
					bytes = m.gradient
				}
				busy[e.way] = max(busy[e.way], now) + bytes
				ends[at] = busy[e.way] + m.latency
			}
		case schedule.ReceiveActivation, schedule.ReceiveGradient:
			now = max(now, ends[e.send])
		case schedule.Reduce:
			reduced[e.worker] = max(now, reduced[e.worker]) + t.reduce
		}
		free[e.worker] = now
	}
	return max(slices.Max(free), slices.Max(reduced))
}
