package schedule

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// meet moves receives of the program's lists ahead until the program gets to its end also where
// nothing waits on any link, so that a worker that sends goes on when the value was received
// ([Limits]). The program must get to its end on links that hold any number of values. Otherwise
// the generator that made it is wrong, and meet panics with the workers that wait for each other.
//
// Two neighbours of 1F1B show the problem. Worker 0 hands an activation on and then wants a
// gradient, worker 1 hands that gradient on and then wants the activation:
//
//	worker 0  0F1 0F1>1 1>0B0 0B0              worker 0  0F1 0F1>1 1>0B0 0B0
//	worker 1  1B0 1B0>0 0>1F1 1F1      becomes  worker 1  1B0 0>1F1 1B0>0 1F1
//
// The program is run, and whenever workers wait for each other in a circle, one of the values in
// the circle that wait to be sent is received where its receiver is. On links that hold any number
// of values, and if computations take what parts says, that costs no time: in every circle there
// is a value that is made before its receiver would send or compute next. (Otherwise each worker of
// the circle would do so later than the worker it waits for.) Of several the value wanted after the
// fewest computations is taken, so that little is held for long. The run is an order of all actions
// in which each receive directly follows its send. So the program gets to its end on links of any
// capacity, and each worker receives from each other in the order of its sends.
func (p *Program) meet() {
	free := *p
	free.Capacity = 0
	m := &meeting{Graph: free.index(), home: p.Placement(), out: make([][]Action, len(p.Workers))}
	m.next = slices.Clone(m.First[:len(p.Workers)])
	m.ahead = make([]bool, len(m.Actions))
	for w := range p.Workers {
		m.run(w)
	}
	for w := range p.Workers {
		for m.next[w] < m.First[w+1] {
			m.breakCircle(w)
		}
	}
	p.Workers = m.out
}

// meeting is a run of a program on links on which nothing waits.
type meeting struct {
	*Graph
	next  []int      // by worker: the id of the action that it is at
	ahead []bool     // by id: received ahead
	out   [][]Action // by worker: what it has done
	home  []int      // by stage: its worker

	// Where links hold any number of values; nil until it is asked for (foresee).
	before []int           // by id: computations of its worker before it
	start  []time.Duration // by id: of its worker's next computation from there on
}

// foresee simulates the program, once. Many programs have no value to choose.
func (m *meeting) foresee() {
	if m.start != nil {
		return
	}
	m.before, m.start = make([]int, len(m.Actions)), make([]time.Duration, len(m.Actions))
	m.simulation().Run(parts, Links{}, func(w, at int, start,
		_ time.Duration) {
		m.start[m.First[w]+at] = start
	})
	computes := func(id int) bool { k := m.Actions[id].Kind; return !k.Transfer() && k != Reduce }
	for w := range m.next {
		next := time.Duration(math.MaxInt64)
		for id := m.First[w+1] - 1; id >= m.First[w]; id-- {
			if computes(id) {
				next = m.start[id]
			}
			m.start[id] = next
		}
		for id := m.First[w] + 1; id < m.First[w+1]; id++ {
			m.before[id] = m.before[id-1]
			if computes(id - 1) {
				m.before[id]++
			}
		}
	}
}

// current returns the action that a worker is at, or false if it has ended.
func (m *meeting) current(w int) (Action, bool) {
	for m.next[w] < m.First[w+1] && m.ahead[m.next[w]] {
		m.next[w]++
	}
	if m.next[w] == m.First[w+1] {
		return Action{}, false
	}
	return m.Actions[m.next[w]], true
}

// do has a worker perform the action that it is at.
func (m *meeting) do(w int, a Action) {
	m.out[w] = append(m.out[w], a)
	m.next[w]++
}

// run performs the actions of a worker until it has to wait, and then the actions of workers that
// can continue.
func (m *meeting) run(w int) {
	ready := []int{w}
	for len(ready) > 0 {
		w, ready = ready[len(ready)-1], ready[:len(ready)-1]
		for a, ok := m.current(w); ok; a, ok = m.current(w) {
			other := m.home[a.Peer]
			if !a.Kind.Transfer() || other == w {
				m.do(w, a)
				continue
			}
			b, ok := m.current(other)
			switch {
			case ok && b == a.Matching():
				m.do(w, a)
				m.do(other, b)
			// each has something for the other
			case ok && a.Kind.Send() && b.Kind.Send() && m.home[b.Peer] == w:
				m.receiveEarly(m.cheaper(a, b))
			default:
				other = -1
			}
			if other < 0 {
				break
			}
			ready = append(ready, other)
		}
	}
}

// cheaper returns the send of two that costs its receiver less to receive ahead. It compares the
// receiver's delay; at equal delay, the computations before the receiver needs the value.
func (m *meeting) cheaper(a, b Action) Action {
	m.foresee()
	late := func(send Action) time.Duration { // by how much the receiver would go on later
		w := m.home[send.Peer]
		due := m.start[m.next[w]] // when it would send or compute next if nothing held it up
		if a, ok := m.current(w); ok && a.Kind.Send() {
			due = m.made(a)
		}
		return max(0, m.made(send)-due)
	}
	wanted := func(send Action) int {
		return m.before[m.receiveOf(send)] - m.before[m.next[m.home[send.Peer]]]
	}
	if cmp.Or(cmp.Compare(late(a), late(b)), cmp.Compare(wanted(a), wanted(b)), cmp.Compare(a.Kind, b.Kind),
		cmp.Compare(a.Stage, b.Stage)) > 0 {
		return b
	}
	return a
}

// made returns when the value of a send is made.
func (m *meeting) made(send Action) time.Duration {
	for _, kind := range []Kind{Forward, Backward, BackwardInput} {
		maker := Action{kind, send.Stage, send.MicroBatch, 0}
		if id, ok := m.IndexOf(maker); ok && kind.forward() == send.Kind.forward() {
			return m.start[id] + parts(maker)
		}
	}
	return 0
}

// receiveOf is the receive of a send.
func (m *meeting) receiveOf(send Action) int {
	id, ok := m.IndexOf(send.Matching())
	if !ok {
		m.fail(send)
	}
	return id
}

// fail panics with the actions of workers that wait for what never comes.
func (m *meeting) fail(at ...Action) {
	panic(fmt.Sprintf("schedule: an order that cannot run: workers wait at %v", at))
}

// receiveEarly performs a send that its worker is at, and has it received where the receiver is.
func (m *meeting) receiveEarly(send Action) {
	receive := send.Matching()
	m.ahead[m.receiveOf(send)] = true
	m.out[m.home[receive.Stage]] = append(m.out[m.home[receive.Stage]], receive)
	m.do(m.home[send.Stage], send)
}

// breakCircle finds workers that wait for each other in a circle, starting with a waiting one, and
// has one of their values received ahead.
func (m *meeting) breakCircle(w int) {
	var path []Action // what each worker on the way is at
	seen := map[int]int{}
	for {
		a, ok := m.current(w)
		if !ok && len(path) == 0 {
			return
		}
		if !ok { // the last one waits for a worker that has ended
			m.fail(path...)
		}
		if at, ok := seen[w]; ok {
			path = path[at:]
			break
		}
		seen[w] = len(path)
		path = append(path, a)
		w = m.home[a.Peer]
	}
	sends := slices.DeleteFunc(slices.Clone(path), func(a Action) bool { return !a.Kind.Send() })
	if len(sends) == 0 {
		m.fail(path...)
	}
	best := sends[0]
	for _, a := range sends[1:] {
		best = m.cheaper(best, a)
	}
	m.receiveEarly(best)
	m.run(m.home[best.Stage])
	m.run(m.home[best.Peer])
}
