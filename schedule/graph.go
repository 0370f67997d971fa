package schedule

import "slices"

// Graph is a program with its dependencies, by dense ids: an action's id is its position when the workers' lists are
// laid end to end. It is computed once, so that the machine that runs the program looks nothing up by name. A Graph
// is read-only after [Program.Graph] made it and safe for concurrent use.
//
// What an action needs:
//
//	sFi     the activations of i received from the stage before and along every skip that ends at s; sF(i-1),
//	        because running statistics add up in order
//	sRi     sFi
//	sBi     sFi, or sRi as well if there is one; the gradients of i received from the stage after and back along
//	        every skip that begins at s; sB(i-1) or sW(i-1), because gradients add up in order
//	sIi     as sBi, but of i-1 only sB(i-1) or sI(i-1)
//	sWi     sIi; sB(i-1) or sW(i-1)
//	sFi>t   sFi; on a link of capacity c between neighbours on two workers also s>tF(i-c)
//	sBi>t   sBi or sIi; likewise s>tB(i-c)
//	s>tFi   sFi>t
//	s>tBi   sBi>t
//
// On a link on which nothing waits, the action after a send on its worker also needs the receive of what was sent.
//
// A dependency that is not in the program is no dependency: in a [BackwardOnly] program forward is done before it
// starts, and in any other its absence is a violation that [Check] reports.
type Graph struct {
	Actions []Action // by id
	Worker  []int    // by id: the worker that performs the action
	First   []int    // by worker: the id of its first action; one more entry, len(Actions), closes the last
	Deps    [][]int  // by id: the ids of the actions that must be done before it starts
	Cross   [][]int  // by id: those of Deps on other workers; they are what a worker has to wait for

	index *index
}

// Graph computes the program's dependencies. It takes any program, also one that [Check] would refuse; where an
// action occurs twice, the first occurrence is the one that others depend on.
func (p *Program) Graph() *Graph {
	size := 0
	for _, actions := range p.Workers {
		size += len(actions)
	}
	g := &Graph{
		Actions: make([]Action, 0, size),
		Worker:  make([]int, 0, size),
		First:   []int{0},
		Deps:    make([][]int, size),
		Cross:   make([][]int, size),
		index:   newIndex(p),
	}
	for w, actions := range p.Workers {
		for _, a := range actions {
			g.index.add(a, len(g.Actions))
			g.Actions = append(g.Actions, a)
			g.Worker = append(g.Worker, w)
		}
		g.First = append(g.First, len(g.Actions))
	}
	g.needs(p, false)
	return g
}

// needs fills in the dependencies. With meet, nothing waits on any link between two workers.
func (g *Graph) needs(p *Program, meet bool) {
	size := len(g.Actions)
	skips := fanOf(p.Skips)
	var need []Action
	// Actions come in hundreds of thousands: their lists are parts of long ones rather than memory of their own.
	deps, cross := make([]int, 0, 3*size), make([]int, 0, size)
	for id, a := range g.Actions {
		firstDep, firstCross := len(deps), len(cross)
		need = p.needs(need[:0], skips, a)
		own := len(need) // those after it count only on other workers
		if c := p.Capacity; a.Kind.Send() && c > 0 && a.distance() == 1 {
			earlier := a.Matching()
			earlier.MicroBatch -= c
			need = append(need, earlier)
		}
		if id > g.First[g.Worker[id]] {
			if sent := g.Actions[id-1]; sent.Kind.Send() && (meet || p.Capacity == Meet && sent.distance() == 1) {
				need = append(need, sent.Matching())
			}
		}
		for at, n := range need {
			dep, ok := g.index.find(n)
			if !ok || at >= own && g.Worker[dep] == g.Worker[id] {
				continue
			}
			deps = append(deps, dep)
			if g.Worker[dep] != g.Worker[id] {
				cross = append(cross, dep)
			}
		}
		g.Deps[id] = deps[firstDep:len(deps):len(deps)]
		g.Cross[id] = cross[firstCross:len(cross):len(cross)]
	}
}

// IndexOf returns the id of an action, or false if the program has no such action.
func (g *Graph) IndexOf(a Action) (int, bool) {
	return g.index.find(a)
}

// needs appends to a list what an action depends on in the program, if that has all of it. At the first stage, the
// last stage and the first micro-batch some of these exist in no program.
func (p *Program) needs(list []Action, skips fan, a Action) []Action {
	s, i := a.Stage, a.MicroBatch
	switch a.Kind {
	case Forward:
		for _, from := range skips.from[s] {
			list = append(list, Action{ReceiveActivation, s, i, from})
		}
		return append(list, Action{ReceiveActivation, s, i, s - 1}, Action{Forward, s, i - 1, 0})
	case Recompute:
		return append(list, Action{Forward, s, i, 0})
	case Backward, BackwardInput:
		list = append(list, Action{Forward, s, i, 0}, Action{Recompute, s, i, 0})
		for _, to := range slices.Backward(skips.to[s]) {
			list = append(list, Action{ReceiveGradient, s, i, to})
		}
		before := BackwardWeight
		if a.Kind == BackwardInput {
			before = BackwardInput
		}
		return append(list, Action{ReceiveGradient, s, i, s + 1}, Action{Backward, s, i - 1, 0}, Action{before, s, i - 1, 0})
	case BackwardWeight:
		return append(list, Action{BackwardInput, s, i, 0}, Action{Backward, s, i - 1, 0}, Action{BackwardWeight, s, i - 1, 0})
	case SendActivation:
		return append(list, Action{Forward, s, i, 0})
	case SendGradient:
		return append(list, Action{Backward, s, i, 0}, Action{BackwardInput, s, i, 0})
	case ReceiveActivation, ReceiveGradient:
		return append(list, a.Matching())
	}
	return list
}

// advance performs actions as workers would, each in its own order and waiting only for other workers, until all are
// done or none can go on. It calls visit once for each, in an order in which every action follows those of its
// dependencies that are done. It returns, for each worker, the id of the action that it is stuck at, or First of the
// next worker where it is through.
func (g *Graph) advance(visit func(id int)) []int {
	workers := len(g.First) - 1
	next := append([]int(nil), g.First[:workers]...)
	done := make([]bool, len(g.Actions))
	ready := func(id int) bool {
		for _, dep := range g.Cross[id] {
			if !done[dep] {
				return false
			}
		}
		return true
	}
	for moved := true; moved; {
		moved = false
		for w := range workers {
			for next[w] < g.First[w+1] && ready(next[w]) {
				visit(next[w])
				done[next[w]] = true
				next[w]++
				moved = true
			}
		}
	}
	return next
}
