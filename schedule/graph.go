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
		Actions:  slices.Concat(p.Workers...),
		Worker:   make([]int, n.size()),
		First:    n.first,
		Deps:     make([][]int, n.size()),
		Cross:    make([][]int, n.size()),
		numbered: n,
	}
	// Actions come in hundreds of thousands: their lists are parts of long ones rather than memory
	// of their own.
	deps, cross := make([]int, 0, 3*n.size()), make([]int, 0, n.size())
	for id := range g.Actions {
		w := int(n.worker[id])
		g.Worker[id] = w
		firstDep, firstCross := len(deps), len(cross)
		deps = n.deps(deps, w, id-n.first[w], false)
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
func (g *Graph) IndexOf(a Action) (int, bool) {
	return g.numbered.index.find(a)
}

// needs appends the dependencies of an action in a complete program to a list. At the
// first stage, the last stage and the first micro-batch some of these exist in no program.
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
		return append(list, Action{ReceiveGradient, s, i, s + 1}, Action{Backward, s, i - 1, 0},
			Action{before, s, i - 1, 0})
	case BackwardWeight:
		return append(list, Action{BackwardInput, s, i, 0}, Action{Backward, s, i - 1, 0},
			Action{BackwardWeight, s, i - 1, 0})
	case SendActivation:
		return append(list, Action{Forward, s, i, 0})
	case SendGradient:
		return append(list, Action{Backward, s, i, 0}, Action{BackwardInput, s, i, 0})
	case ReceiveActivation, ReceiveGradient:
		return append(list, a.Matching())
	case Reduce:
		return append(list, Action{Backward, s, p.MicroBatches - 1, 0},
			Action{BackwardWeight, s, p.MicroBatches - 1, 0})
	}
	return list
}
