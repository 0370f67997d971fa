package schedule

// Graph is a program with its dependencies, by dense ids: an action's id is its position when the workers' lists are
// laid end to end. It is computed once, so that the machine that runs the program looks nothing up by name. A Graph
// is read-only after [Program.Graph] made it and safe for concurrent use.
//
// What an action needs:
//
//	sFi     the activation of i from the stage before; sF(i-1), because running statistics add up in order
//	sRi     sFi
//	sBi     sFi, or sRi as well if there is one; the gradient of i from the stage after; sB(i-1), because
//	        gradients add up in order
//	t>sFi   tFi
//	t>sBi   tBi
//
// A dependency that is not in the program is no dependency: in a [BackwardOnly] program forward is done before it
// starts, and in any other its absence is a violation that [Check] reports.
type Graph struct {
	Actions []Action // by id
	Worker  []int    // by id: the worker that performs the action
	First   []int    // by worker: the id of its first action; one more entry, len(Actions), closes the last
	Deps    [][]int  // by id: the ids of the actions that must be done before it starts
	Cross   [][]int  // by id: those of Deps on other workers; they are what a worker has to wait for

	index map[Action]int
}

// Graph computes the program's dependencies. It takes any program, also one that [Check] would refuse; where an
// action occurs twice, the first occurrence is the one that others depend on.
func (p *Program) Graph() *Graph {
	g := &Graph{First: []int{0}, index: make(map[Action]int)}
	for w, actions := range p.Workers {
		for _, a := range actions {
			if _, twice := g.index[a]; !twice {
				g.index[a] = len(g.Actions)
			}
			g.Actions = append(g.Actions, a)
			g.Worker = append(g.Worker, w)
		}
		g.First = append(g.First, len(g.Actions))
	}
	g.Deps = make([][]int, len(g.Actions))
	g.Cross = make([][]int, len(g.Actions))
	for id, a := range g.Actions {
		for _, need := range needs(a) {
			dep, ok := g.index[need]
			if !ok {
				continue
			}
			g.Deps[id] = append(g.Deps[id], dep)
			if g.Worker[dep] != g.Worker[id] {
				g.Cross[id] = append(g.Cross[id], dep)
			}
		}
	}
	return g
}

// IndexOf returns the id of an action, or false if the program has no such action.
func (g *Graph) IndexOf(a Action) (int, bool) {
	id, ok := g.index[a]
	return id, ok
}

// needs lists what an action depends on in a program that has all of it. At the first stage, the last stage and the
// first micro-batch some of these exist in no program.
func needs(a Action) []Action {
	s, i := a.Stage, a.MicroBatch
	switch a.Kind {
	case Forward:
		return []Action{{Activation, s, i, s - 1}, {Forward, s, i - 1, 0}}
	case Recompute:
		return []Action{{Forward, s, i, 0}}
	case Backward:
		return []Action{{Forward, s, i, 0}, {Recompute, s, i, 0}, {Gradient, s, i, s + 1}, {Backward, s, i - 1, 0}}
	case Activation:
		return []Action{{Forward, a.Source, i, 0}}
	case Gradient:
		return []Action{{Backward, a.Source, i, 0}}
	}
	return nil
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
