package schedule

import "slices"

// numbered is a program with dense ids of actions: an action's id is its position when the workers'
// lists are laid end to end. It computes dependencies without keeping them, so that programs of
// tens of millions of actions can be checked and simulated. It changes nothing and is safe for
// concurrent use.
type numbered struct {
	*Program
	first  []int   // by worker: the id of its first action; one more entry, the number of actions, closes the last
	worker []int32 // by id
	index  *index
	skips  fan
}

func (p *Program) numbered() *numbered {
	n := &numbered{Program: p, first: []int{0}, index: newIndex(p), skips: fanOf(p.Skips)}
	for _, actions := range p.Workers {
		n.first = append(n.first, n.first[len(n.first)-1]+len(actions))
	}
	n.worker = make([]int32, 0, n.size())
	for w, actions := range p.Workers {
		for at, a := range actions {
			n.index.add(a, n.first[w]+at)
			n.worker = append(n.worker, int32(w))
		}
	}
	return n
}

// size is the number of actions.
func (n *numbered) size() int { return n.first[len(n.first)-1] }

// action returns the action of an id.
func (n *numbered) action(id int) Action {
	w := n.worker[id]
	return n.Workers[w][id-n.first[w]]
}

// on reports whether an action is on a worker.
func (n *numbered) on(id, w int) bool { return id >= n.first[w] && id < n.first[w+1] }

// deps appends the ids of the actions that must be done before the one at a place of a worker's
// list starts. With meet, nothing waits on any link between two workers.
func (n *numbered) deps(list []int, w, at int, meet bool) []int {
	var space [8]Action
	a := n.Workers[w][at]
	need := n.needs(space[:0], n.skips, a)
	own := len(need) // those after it count only on other workers
	if c := n.Capacity; a.Kind.Send() && c > 0 && a.distance() == 1 {
		earlier := a.Matching()
		earlier.MicroBatch -= c
		need = append(need, earlier)
	}
	if at > 0 {
		if sent := n.Workers[w][at-1]; sent.Kind.Send() &&
			(meet || n.Capacity == Meet && sent.distance() == 1) {
			need = append(need, sent.Matching())
		}
	}
	for i, a := range need {
		if dep, ok := n.index.find(a); ok && (i < own || !n.on(dep, w)) {
			list = append(list, dep)
		}
	}
	return list
}

// advance performs actions as workers would, each in its own order and waiting only for other
// workers, until all are done or stuck. It calls visit once for each action, with its worker and
// its dependencies, in an order in which every action follows its performed dependencies. It
// returns, for each worker, the id of the action that it is stuck at, or the first of the next
// worker if it is through.
func (n *numbered) advance(meet bool, visit func(id, w int, deps []int)) []int {
	workers := len(n.Workers)
	next := slices.Clone(n.first[:workers])
	waiting := make([][]int, workers) // by worker: those that wait for it
	todo := make([]int, workers)
	for w := range todo {
		todo[w] = w
	}
	var deps []int
	for len(todo) > 0 {
		w := todo[0]
		todo = todo[1:]
		from := next[w]
	perform:
		for ; next[w] < n.first[w+1]; next[w]++ {
			id := next[w]
			deps = n.deps(deps[:0], w, id-n.first[w], meet)
			for _, dep := range deps {
				if n.on(dep, w) {
					continue
				}
				if on := int(n.worker[dep]); dep >= next[on] {
					waiting[on] = append(waiting[on], w)
					break perform
				}
			}
			visit(id, w, deps)
		}
		if next[w] > from {
			todo = append(todo, waiting[w]...)
			waiting[w] = waiting[w][:0]
		}
	}
	return next
}
