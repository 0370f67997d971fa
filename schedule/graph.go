package schedule

import "slices"

// Graph is a program with its dependencies, by dense ids: an action's id is its position when the
// workers' lists are laid end to end. It is read-only and safe for concurrent use.
//
// Dependencies of an action:
//
//	sFi     the activations of i received from the stage before and along every skip that ends at s;
//	        sF(i-1), because running statistics add up in order
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
// With capacity [Meet], the action after a send on its worker also needs the matching receive.
//
// Dependencies that the program lacks are left out: in a [BackwardOnly] program the forwards are
// done before it starts, and in any other [Check] reports them.
type Graph struct {
	Actions []Action // by id
	Worker  []int    // by id: the worker that performs the action
	First   []int    // by worker: the id of its first action; and then len(Actions)
	Deps    [][]int  // by id: the ids of the actions that must be done before it starts

	program *Program
	// Skips and reductions are in a map, all other actions in a table. With a map alone the graph
	// of 64 stages and 1,000 micro-batches takes five times as long.
	table []int32 // by slot: id + 1, or 0
	rest  map[Action]int
}

// Graph computes the program's dependencies. It takes any program, even if [Check] would refuse it.
// If an action occurs twice, others depend on the first occurrence.
func (p *Program) Graph() *Graph {
	g := p.index()
	// There are hundreds of thousands of actions, so their lists share the memory of a long one.
	all := make([]int, 0, 3*len(g.Actions))
	for id := range g.Actions {
		first := len(all)
		all = g.deps(all, id)
		g.Deps = append(g.Deps, all[first:len(all):len(all)])
	}
	return g
}

// index returns the graph without its dependencies.
func (p *Program) index() *Graph {
	g := &Graph{
		Actions: slices.Concat(p.Workers...), First: []int{0}, program: p, rest: map[Action]int{},
	}
	if p.checkHeader() == nil {
		g.table = make([]int32, p.Stages*p.MicroBatches*kinds)
	}
	g.Worker = make([]int, 0, len(g.Actions))
	for w, actions := range p.Workers {
		for _, a := range actions {
			id := len(g.Worker)
			if _, twice := g.IndexOf(a); !twice {
				if slot := g.slot(a); slot >= 0 {
					g.table[slot] = int32(id + 1)
				} else {
					g.rest[a] = id
				}
			}
			g.Worker = append(g.Worker, w)
		}
		g.First = append(g.First, len(g.Worker))
	}
	return g
}

// kinds is the number of slots of a micro-batch on a stage.
const kinds = int(ReceiveGradient)

// slot is the action's place in the table, or -1 if it is a skip or does not belong to the program.
func (g *Graph) slot(a Action) int {
	peer := 0
	switch a.Kind {
	case Forward, Recompute, Backward, BackwardInput, BackwardWeight:
	case SendActivation, ReceiveGradient:
		peer = a.Stage + 1
	case SendGradient, ReceiveActivation:
		peer = a.Stage - 1
	default:
		return -1
	}
	if g.table == nil || a.Peer != peer || a.Stage < 0 || a.Stage >= g.program.Stages ||
		a.MicroBatch < 0 || a.MicroBatch >= g.program.MicroBatches {
		return -1
	}
	return (a.Stage*g.program.MicroBatches+a.MicroBatch)*kinds + int(a.Kind-Forward)
}

// IndexOf returns the id of an action, or false if the program has no such action.
func (g *Graph) IndexOf(a Action) (int, bool) {
	if slot := g.slot(a); slot >= 0 {
		id := int(g.table[slot]) - 1
		return max(id, 0), id >= 0
	}
	id, ok := g.rest[a]
	return id, ok
}

// indexInWorker returns an action's index in its worker's list.
func (g *Graph) indexInWorker(id int) int { return id - g.First[g.Worker[id]] }

// deps appends the ids of the actions that must be done before an action starts.
func (g *Graph) deps(list []int, id int) []int {
	var space [8]Action
	a := g.Actions[id]
	need := g.needs(space[:0], a)
	always := len(need) // need[always:] come from a capacity, which links within a worker do not have
	capacity := g.program.Capacity
	if a.Kind.Send() && capacity > 0 && a.distance() == 1 {
		earlier := a.Matching()
		earlier.MicroBatch -= capacity
		need = append(need, earlier)
	}
	if id > g.First[g.Worker[id]] {
		if sent := g.Actions[id-1]; capacity == Meet && sent.Kind.Send() && sent.distance() == 1 {
			need = append(need, sent.Matching())
		}
	}
	for i, a := range need {
		if dep, ok := g.IndexOf(a); ok && (i < always || g.Worker[dep] != g.Worker[id]) {
			list = append(list, dep)
		}
	}
	return list
}

// needs appends all dependencies except those of a capacity. The program may lack some of them.
func (g *Graph) needs(list []Action, a Action) []Action {
	s, i, last := a.Stage, a.MicroBatch, g.program.MicroBatches-1
	switch a.Kind {
	case Forward:
		return append(g.program.receives(list, a), Action{Forward, s, i - 1, 0})
	case Recompute, SendActivation:
		return append(list, Action{Forward, s, i, 0})
	case Backward, BackwardInput:
		before := BackwardWeight
		if a.Kind == BackwardInput {
			before = BackwardInput
		}
		list = append(list, Action{Forward, s, i, 0}, Action{Recompute, s, i, 0})
		return append(g.program.receives(list, a), Action{Backward, s, i - 1, 0},
			Action{before, s, i - 1, 0})
	case BackwardWeight:
		return append(list, Action{BackwardInput, s, i, 0}, Action{Backward, s, i - 1, 0},
			Action{a.Kind, s, i - 1, 0})
	case SendGradient:
		return append(list, Action{Backward, s, i, 0}, Action{BackwardInput, s, i, 0})
	case ReceiveActivation, ReceiveGradient:
		return append(list, a.Matching())
	case Reduce:
		return append(list, Action{Backward, s, last, 0}, Action{BackwardWeight, s, last, 0})
	}
	return list
}

// advance performs the actions of each worker in order, until all workers are done or stuck. It
// calls visit once for each action, after its dependencies. It returns, for each worker, the id of
// the action that it is stuck at, or First of the next worker if it is done.
func (g *Graph) advance(visit func(id int, deps []int)) []int {
	workers := len(g.First) - 1
	next := slices.Clone(g.First[:workers])
	waiting := make([][]int, workers) // by worker: the workers that wait for it
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
		for ; next[w] < g.First[w+1]; next[w]++ {
			deps = g.deps(deps[:0], next[w])
			for _, dep := range deps {
				if on := g.Worker[dep]; dep >= next[on] {
					waiting[on] = append(waiting[on], w)
					break perform
				}
			}
			visit(next[w], deps)
		}
		if next[w] > from {
			todo = append(todo, waiting[w]...)
			waiting[w] = waiting[w][:0]
		}
	}
	return next
}

// LatestReceives returns how long a sent value may wait on its link: by id of the receive, the
// first action of the sender's worker that cannot start before the receive is done. If there is
// none, it is First of the next worker. For other actions it is -1.
//
//	worker 0  0F0 0F0>1 0F1 0F1>1 1>0B0 0B0 ..
//	worker 1  0>1F0 1F0 0>1F1 1F1 1B0 1B0>0 ..
//
// For 0>1F0 it is 1>0B0, which needs 1B0>0, 1B0, 1F0 and 0>1F0. For 1>0B0 there is none, as worker
// 1 needs nothing more from worker 0.
func (g *Graph) LatestReceives() []int {
	out := slices.Repeat([]int{-1}, len(g.Actions))
	order := make([]int, 0, len(g.Actions))
	g.advance(func(id int, _ []int) { order = append(order, id) })
	sent := make([][]int, len(g.First)-1) // by worker: the receives of its sends
	for id, a := range g.Actions {
		if a.Kind.Receive() {
			if from, ok := g.IndexOf(a.Matching()); ok {
				sent[g.Worker[from]] = append(sent[g.Worker[from]], id)
			}
		}
	}
	for w, receives := range sent {
		// by id: the first action of worker w that needs it
		first := slices.Repeat([]int{g.First[w+1]}, len(g.Actions))
		for _, id := range slices.Backward(order) {
			needs := first[id]
			if g.Worker[id] == w {
				needs = id
			}
			for _, dep := range g.Deps[id] {
				first[dep] = min(first[dep], needs)
			}
			if id > g.First[g.Worker[id]] {
				first[id-1] = min(first[id-1], needs)
			}
		}
		for _, id := range receives {
			out[id] = first[id]
		}
	}
	return out
}
