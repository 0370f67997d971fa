package schedule

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// meet moves receives ahead until the program also runs to its end with capacity [Meet], where a
// sender goes on only when its value was received. With unlimited capacity the program must run to
// its end as it is. Otherwise its generator is wrong, and meet panics with the actions at which
// workers wait for each other.
//
// Two neighbours of 1F1B show the problem. Worker 0 sends an activation and then wants a gradient.
// Worker 1 sends that gradient and then wants the activation:
//
//	worker 0  0F1 0F1>1 1>0B0 0B0              worker 0  0F1 0F1>1 1>0B0 0B0
//	worker 1  1B0 1B0>0 0>1F1 1F1      becomes  worker 1  1B0 0>1F1 1B0>0 1F1
//
// meet runs the program. Whenever workers wait for each other in a circle, one send of the circle
// is chosen, and its receiver receives at once. With usualDuration this delays no worker: in every
// circle some value is ready before its receiver would next send or compute. In the run each
// receive directly follows its send. So the program runs to its end at any capacity, and each
// worker receives from another in the order of the other's sends.
func (p *Program) meet() {
	free := *p
	free.Capacity = 0
	m := &meeting{Graph: free.index(), home: p.Placement(), out: make([][]Action, len(p.Workers))}
	m.next = slices.Clone(m.First[:len(p.Workers)])
	m.ahead = make([]bool, len(m.Actions))
	for w := range p.Workers {
		m.ready = append(m.ready, w)
	}
	for waiting := true; waiting; waiting = m.breakCircle() {
		for n := len(m.ready); n > 0; n = len(m.ready) {
			w := m.ready[n-1]
			m.ready = m.ready[:n-1]
			for m.advanceWorker(w) {
			}
		}
	}
	p.Workers = m.out
}

// meeting is a run of a program with capacity [Meet].
type meeting struct {
	*Graph
	next  []int      // by worker: the id of the action that it is at
	ahead []bool     // by id: received ahead
	out   [][]Action // by worker: the actions done
	home  []int      // by stage: its worker
	ready []int      // workers that may be able to go on

	// By id, as simulated with unlimited capacity; nil until simulateOnce.
	ends []time.Duration
	due  []time.Duration // when its worker starts its next computation, this action included
	left []int           // number of computations that its worker has left, this action included
}

// simulateOnce simulates the program at its first call. Many programs have no circle and need none.
func (m *meeting) simulateOnce() {
	if m.ends != nil {
		return
	}
	n := len(m.Actions)
	m.ends, m.due, m.left = make([]time.Duration, n), make([]time.Duration, n), make([]int, n)
	m.simulation().Run(usualDuration, Links{}, func(w, at int, start, end time.Duration) {
		m.ends[m.First[w]+at], m.due[m.First[w]+at] = end, start
	})
	for w := range m.next {
		next, left := time.Duration(math.MaxInt64), 0
		for id := m.First[w+1] - 1; id >= m.First[w]; id-- {
			if k := m.Actions[id].Kind; !k.Transfer() && k != Reduce {
				next = m.due[id]
				left++
			}
			m.due[id], m.left[id] = next, left
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

func (m *meeting) do(w int, a Action) {
	m.out[w] = append(m.out[w], a)
	m.next[w]++
}

// advanceWorker performs the action that a worker is at, unless it has to wait. It performs both
// ends of a transfer.
func (m *meeting) advanceWorker(w int) bool {
	a, ok := m.current(w)
	if !ok {
		return false
	}
	if other := m.home[a.Peer]; a.Kind.Transfer() && other != w {
		if b, ok := m.current(other); !ok || b != a.Matching() {
			return false
		}
		m.do(other, a.Matching())
		m.ready = append(m.ready, other)
	}
	m.do(w, a)
	return true
}

// compare orders sends by the cost of receiving ahead: the receiver's delay, then the number of its
// computations before it needs the value.
func (m *meeting) compare(a, b Action) int {
	late := func(send Action) time.Duration {
		w := m.home[send.Peer]
		due := m.due[m.next[w]] // when the receiver would send or compute next
		if a, ok := m.current(w); ok && a.Kind.Send() {
			due = m.ends[m.next[w]]
		}
		return max(0, m.ends[m.next[m.home[send.Stage]]]-due)
	}
	wanted := func(send Action) int { return m.left[m.next[m.home[send.Peer]]] - m.left[m.receiveOf(send)] }
	return cmp.Or(cmp.Compare(late(a), late(b)), wanted(a)-wanted(b), cmp.Compare(a.Kind, b.Kind),
		a.Stage-b.Stage)
}

// receiveOf returns the id of a send's receive.
func (m *meeting) receiveOf(send Action) int {
	id, ok := m.IndexOf(send.Matching())
	if !ok {
		m.fail(send)
	}
	return id
}

// fail panics with the actions at which workers wait for ever.
func (m *meeting) fail(at ...Action) {
	panic(fmt.Sprintf("schedule: an order that cannot run: workers wait at %v", at))
}

// breakCircle finds workers that wait for each other in a circle, and has one of their values
// received ahead. It returns false if all workers have ended.
func (m *meeting) breakCircle() bool {
	var path []Action     // each worker's action, from a worker to the one that it waits for
	seen := map[int]int{} // by worker: its place in path
	for w := 0; w < len(m.next); {
		a, ok := m.current(w)
		if !ok && path == nil {
			w++
			continue
		}
		if !ok { // the last worker of path waits for one that has ended
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
	if path == nil {
		return false
	}
	sends := slices.DeleteFunc(slices.Clone(path), func(a Action) bool { return !a.Kind.Send() })
	if len(sends) == 0 {
		m.fail(path...)
	}
	m.simulateOnce()
	send := slices.MinFunc(sends, m.compare)
	to := m.home[send.Peer]
	m.ahead[m.receiveOf(send)] = true
	m.out[to] = append(m.out[to], send.Matching())
	m.do(m.home[send.Stage], send)
	m.ready = append(m.ready, m.home[send.Stage], to)
	return true
}
