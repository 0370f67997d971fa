package schedule

import "cmp"

// meet moves receives of the program's lists ahead until the program gets to its end also where nothing waits on any
// link, so that a worker that sends goes on when the value was received ([Limits]). The program must get to its end on
// links that hold any number of values.
//
// Two neighbours of 1F1B show what is at stake. Worker 0 hands an activation on and then wants a gradient, worker 1 hands
// that gradient on and then wants the activation:
//
//	worker 0  0F1 0F1>1 1>0B0 0B0              worker 0  0F1 0F1>1 1>0B0 0B0
//	worker 1  1B0 1B0>0 0>1F1 1F1      becomes  worker 1  1B0 0>1F1 1B0>0 1F1
//
// The program is run, with a backward that takes two units and all other computations one, and whenever workers wait
// for each other in a circle, one of the values in the circle that wait to be sent is received where its receiver is. It
// is the one for which the receiver has to wait least; in a circle of sends that is no time at all, as one of them is
// ready before its receiver is. Of several it is the one that is wanted after the fewest computations, so that little
// is held for long. What was run in the end is an order of all actions in which each receive directly
// follows its send. So it gets to its end on links of any capacity, and what one worker sends another is received in
// the order in which it is sent.
func (p *Program) meet() {
	m := newMeeting(p)
	for w := range p.Workers {
		m.run(w)
	}
	for w := range p.Workers {
		for m.next[w] < m.first[w+1] {
			m.breakCircle(w)
		}
	}
	for w := range p.Workers {
		p.Workers[w] = m.out[w]
	}
}

// meeting is a run of a program on links on which nothing waits.
type meeting struct {
	*Program
	index  *index
	first  []int      // by worker: the id of its first action; the last entry closes
	next   []int      // by worker: the id of the action that it is at
	done   []bool     // by id: received ahead
	before []int32    // by id: computations of its worker before it
	out    [][]Action // by worker: what it has done
	clock  []int      // by worker: when it is there
	worker []int      // by stage
}

func newMeeting(p *Program) *meeting {
	m := &meeting{Program: p, index: newIndex(p), first: []int{0}, worker: make([]int, p.Stages), clock: make([]int, len(p.Workers))}
	for w, actions := range p.Workers {
		computations := int32(0)
		for _, a := range actions {
			m.index.add(a, len(m.before))
			m.before = append(m.before, computations)
			if !a.Kind.Transfer() {
				computations++
			}
			m.worker[a.Stage] = w
		}
		m.next = append(m.next, m.first[w])
		m.first = append(m.first, len(m.before))
		m.out = append(m.out, make([]Action, 0, len(actions)))
	}
	m.done = make([]bool, len(m.before))
	return m
}

// at returns the action that a worker is at, or false if it has ended.
func (m *meeting) at(w int) (Action, bool) {
	for m.next[w] < m.first[w+1] && m.done[m.next[w]] {
		m.next[w]++
	}
	if m.next[w] == m.first[w+1] {
		return Action{}, false
	}
	return m.Workers[w][m.next[w]-m.first[w]], true
}

// do has a worker perform the action that it is at.
func (m *meeting) do(w int, a Action) {
	m.out[w] = append(m.out[w], a)
	m.next[w]++
	switch {
	case a.Kind == Backward:
		m.clock[w] += 2
	case !a.Kind.Transfer():
		m.clock[w]++
	}
}

// together is the time at which two workers are both there.
func (m *meeting) together(v, w int) {
	m.clock[v] = max(m.clock[v], m.clock[w])
	m.clock[w] = m.clock[v]
}

// run performs the actions of a worker until it has to wait, and those of whoever can go on then.
func (m *meeting) run(w int) {
	ready := []int{w}
	for len(ready) > 0 {
		w, ready = ready[len(ready)-1], ready[:len(ready)-1]
		for {
			a, ok := m.at(w)
			if !ok {
				break
			}
			other := m.worker[a.Peer]
			if !a.Kind.Transfer() || other == w {
				m.do(w, a)
				continue
			}
			b, ok := m.at(other)
			if ok && b == a.Matching() {
				m.together(w, other)
				m.do(w, a)
				m.do(other, b)
				ready = append(ready, other)
				continue
			}
			if ok && a.Kind.Send() && b.Kind.Send() && m.worker[b.Peer] == w { // each has something for the other
				m.ahead(m.better(a, b))
				ready = append(ready, other)
				continue
			}
			break
		}
	}
}

// wanted is the number of computations that the receiver of what is sent does before it wants it.
func (m *meeting) wanted(send Action) int32 {
	id, _ := m.index.find(send.Matching())
	return m.before[id] - m.before[m.next[m.worker[send.Peer]]]
}

// better returns that of two sends that is better received ahead.
func (m *meeting) better(a, b Action) Action {
	wait := func(send Action) int {
		return max(0, m.clock[m.worker[send.Stage]]-m.clock[m.worker[send.Peer]])
	}
	if cmp.Or(cmp.Compare(wait(a), wait(b)), cmp.Compare(m.wanted(a), m.wanted(b)), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Stage, b.Stage)) > 0 {
		return b
	}
	return a
}

// ahead performs a send that its worker is at, and has it received where the receiver is.
func (m *meeting) ahead(send Action) {
	receive := send.Matching()
	id, _ := m.index.find(receive)
	m.done[id] = true
	m.together(m.worker[send.Stage], m.worker[send.Peer])
	m.out[m.worker[receive.Stage]] = append(m.out[m.worker[receive.Stage]], receive)
	m.do(m.worker[send.Stage], send)
}

// breakCircle finds workers that wait for each other in a circle, beginning with one that waits, and has one of their
// values received ahead.
func (m *meeting) breakCircle(w int) {
	var path []Action // what each worker on the way is at
	seen := map[int]int{}
	for {
		a, ok := m.at(w)
		if !ok {
			return
		}
		if at, ok := seen[w]; ok {
			path = path[at:]
			break
		}
		seen[w] = len(path)
		path = append(path, a)
		w = m.worker[a.Peer]
	}
	var best Action
	for _, a := range path {
		switch {
		case !a.Kind.Send():
		case best.Kind == 0:
			best = a
		default:
			best = m.better(best, a)
		}
	}
	m.ahead(best)
	m.run(m.worker[best.Stage])
	m.run(m.worker[best.Peer])
}
