package schedule

import "slices"

// Graph is a program with its dependencies, by dense ids: an action's id is its position when the
// workers' lists are laid end to end. It is computed once, so that the machine that runs the
// program looks nothing up by name. A Graph is read-only after [Program.Graph] made it and safe for
// concurrent use.
//
// Dependencies of an action:
//
//	sFi     the activations of i received from the stage before and along every skip that ends at s; sF(i-1),
//	        because running statistics add up in order
//	sRi     sFi
//	sBi     sFi, and sRi if it exists; the gradients of i received from the stage after and back along
//	        every skip that begins at s; sB(i-1) or sW(i-1), because gradients add up in order
//	sIi     as sBi, but of i-1 only sB(i-1) or sI(i-1)
//	sWi     sIi; sB(i-1) or sW(i-1)
//	sFi>t   sFi; on a link of capacity c between neighbours on two workers also s>tF(i-c)
//	sBi>t   sBi or sIi; likewise s>tB(i-c)
//	s>tFi   sFi>t
//	s>tBi   sBi>t
//	sRED    sB(m-1) or sW(m-1) of m micro-batches
//
// On a link on which nothing waits, the action after a send on its worker also needs the matching
// receive.
//
// A dependency that is not in the program is no dependency: in a [BackwardOnly] program forward is
// done before it starts, and in any other its absence is a violation that [Check] reports.
type Graph struct {
	Actions []Action // by id
	Worker  []int    // by id: the worker that performs the action
	First   []int    // by worker: the id of its first action; one more entry, len(Actions), closes the last
	Deps    [][]int  // by id: the ids of the actions that must be done before it starts
	Cross   [][]int  // by id: those of Deps on other workers; they are what a worker has to wait for

	numbered *numbered
}

// Graph computes the program's dependencies. It takes any program, even if [Check] would refuse it.
// If an action occurs twice, others depend on the first occurrence.
func (p *Program) Graph() *Graph {
	n := p.numbered()
	g := &Graph{
		Actions: slices.Concat(p.Workers...), Worker: make([]int, n.size()), First: n.first,
		Deps: make([][]int, n.size()), Cross: make([][]int, n.size()), numbered: n,
	}
	// Actions come in hundreds of thousands: their lists are parts of long ones rather than memory
	// of their own.
	deps, cross := make([]int, 0, 3*n.size()), make([]int, 0, n.size())
	for id := range g.Actions {
		w := int(n.worker[id])
		g.Worker[id] = w
		firstDep, firstCross := len(deps), len(cross)
		deps = n.deps(deps, id, false)
		for _, dep := range deps[firstDep:] {
			if !n.on(dep, w) {
				cross = append(cross, dep)
			}
		}
		g.Deps[id] = deps[firstDep:len(deps):len(deps)]
		g.Cross[id] = cross[firstCross:len(cross):len(cross)]
	}
	return g
}

// IndexOf returns the id of an action, or false if the program has no such action.
func (g *Graph) IndexOf(a Action) (int, bool) { return g.numbered.find(a) }

// numbered is a program with ids of its actions. It computes dependencies without keeping them, so
// that programs of tens of millions of actions can be checked and simulated. It is read-only and
// safe for concurrent use.
type numbered struct {
	*Program
	first  []int   // by worker: the id of its first action; one more entry, the number of actions, closes the last
	worker []int32 // by id
	skips  fan
	// An action is looked up several times: what every program has is in a table, and only skips
	// in a map. With a map alone the graph of 64 stages
	// and 1,000 micro-batches takes five times as long.
	table []int32 // by slot: id + 1, or 0
	rest  map[Action]int
}

func (p *Program) numbered() *numbered {
	n := &numbered{Program: p, first: []int{0}, skips: fanOf(p.Skips), rest: map[Action]int{}}
	for _, actions := range p.Workers {
		n.first = append(n.first, n.first[len(n.first)-1]+len(actions))
	}
	if checkSize(p.Stages, 0, p.MicroBatches) == nil {
		n.table = make([]int32, p.Stages*p.MicroBatches*kinds)
	}
	n.worker = make([]int32, 0, n.size())
	for w, actions := range p.Workers {
		for _, a := range actions {
			if _, twice := n.find(a); !twice {
				if slot, ok := n.slot(a); ok {
					n.table[slot] = int32(len(n.worker) + 1)
				} else {
					n.rest[a] = len(n.worker)
				}
			}
			n.worker = append(n.worker, int32(w))
		}
	}
	return n
}

// kinds is the number of kinds that a micro-batch on a stage has slots for.
const kinds = int(ReceiveGradient)

// slot is the action's place in the table, or false if it is a skip or does not belong to the
// program.
func (n *numbered) slot(a Action) (int, bool) {
	peer := 0
	switch a.Kind {
	case Forward, Recompute, Backward, BackwardInput, BackwardWeight:
	case SendActivation, ReceiveGradient:
		peer = a.Stage + 1
	case SendGradient, ReceiveActivation:
		peer = a.Stage - 1
	default:
		return 0, false
	}
	if n.table == nil || a.Peer != peer || a.Stage < 0 || a.Stage >= n.Stages || a.MicroBatch < 0 || a.MicroBatch >= n.MicroBatches {
		return 0, false
	}
	return (a.Stage*n.MicroBatches+a.MicroBatch)*kinds + int(a.Kind-Forward), true
}

// find returns the action's id, or false if it has none.
func (n *numbered) find(a Action) (int, bool) {
	if slot, ok := n.slot(a); ok {
		id := int(n.table[slot]) - 1
		return max(id, 0), id >= 0
	}
	id, ok := n.rest[a]
	return id, ok
}

// size is the number of actions.
func (n *numbered) size() int { return n.first[len(n.first)-1] }

// action returns the action of an id.
func (n *numbered) action(id int) Action { return n.Workers[n.worker[id]][n.at(id)] }

// at returns the place of an action in the list of its worker.
func (n *numbered) at(id int) int { return id - n.first[n.worker[id]] }

// on reports whether an action is on a worker.
func (n *numbered) on(id, w int) bool { return id >= n.first[w] && id < n.first[w+1] }

// deps appends the ids of the actions that must be done before an action starts. With meet, nothing
// waits on any link between two workers.
func (n *numbered) deps(list []int, id int, meet bool) []int {
	var space [8]Action
	w, a := int(n.worker[id]), n.action(id)
	need := n.needs(space[:0], a)
	own := len(need) // those after it count only on other workers
	if c := n.Capacity; a.Kind.Send() && c > 0 && a.distance() == 1 {
		earlier := a.Matching()
		earlier.MicroBatch -= c
		need = append(need, earlier)
	}
	if id > n.first[w] {
		if sent := n.action(id - 1); sent.Kind.Send() && (meet || n.Capacity == Meet && sent.distance() == 1) {
			need = append(need, sent.Matching())
		}
	}
	for i, a := range need {
		if dep, ok := n.find(a); ok && (i < own || !n.on(dep, w)) {
			list = append(list, dep)
		}
	}
	return list
}

// needs appends the dependencies of an action in a complete program to a list. At the
// first stage, the last stage and the first micro-batch some of these exist in no program.
func (n *numbered) needs(list []Action, a Action) []Action {
	s, i := a.Stage, a.MicroBatch
	switch a.Kind {
	case Forward:
		for _, from := range n.skips.from[s] {
			list = append(list, Action{ReceiveActivation, s, i, from})
		}
		return append(list, Action{ReceiveActivation, s, i, s - 1}, Action{Forward, s, i - 1, 0})
	case Recompute, SendActivation:
		return append(list, Action{Forward, s, i, 0})
	case Backward, BackwardInput:
		list = append(list, Action{Forward, s, i, 0}, Action{Recompute, s, i, 0})
		for _, to := range slices.Backward(n.skips.to[s]) {
			list = append(list, Action{ReceiveGradient, s, i, to})
		}
		before := BackwardWeight
		if a.Kind == BackwardInput {
			before = BackwardInput
		}
		return append(list, Action{ReceiveGradient, s, i, s + 1}, Action{Backward, s, i - 1, 0}, Action{before, s, i - 1, 0})
	case BackwardWeight:
		return append(list, Action{BackwardInput, s, i, 0}, Action{Backward, s, i - 1, 0}, Action{BackwardWeight, s, i - 1, 0})
	case SendGradient:
		return append(list, Action{Backward, s, i, 0}, Action{BackwardInput, s, i, 0})
	case ReceiveActivation, ReceiveGradient:
		return append(list, a.Matching())
	case Reduce:
		return append(list, Action{Backward, s, n.MicroBatches - 1, 0}, Action{BackwardWeight, s, n.MicroBatches - 1, 0})
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
			deps = n.deps(deps[:0], id, meet)
			for _, dep := range deps {
				if on := int(n.worker[dep]); on != w && dep >= next[on] {
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
