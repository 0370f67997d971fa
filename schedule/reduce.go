package schedule

import (
	"maps"
	"slices"
)

// AddReduce returns the program of a pipeline with replicas, each on rows of its own: the gradients
// of each stage are reduced ([Reduce]) after the last of its backwards, or of their second parts,
// and after what that sends, for which other stages wait. For 2 stages:
//
//	worker 0: ... 1>0B1 0B1 0RED
//	worker 1: ... 1B1 1B1>0 1RED
//
// The reductions of a worker stand in descending order of their stages, as backwards end in most
// programs. Replicas may have different numbers of micro-batches, so that their backwards end in
// other orders, and a reduction waits for all replicas. With one order for all, two never wait for
// each other.
//
// Reductions that the program has are placed anew. It must pass [Check]; it is not changed. A
// program without backwards stays without reductions.
func AddReduce(p *Program) *Program {
	out := p.WithoutReduce()
	for w, actions := range out.Workers {
		last := map[int]int{} // by stage: after which action it may stand
		for at, a := range actions {
			switch {
			case a.Kind == Backward || a.Kind == BackwardWeight:
				last[a.Stage] = at
			case a.Kind.Send() && at > 0:
				if s, known := last[a.Stage]; known && s == at-1 {
					last[a.Stage] = at
				}
			}
		}
		stages := slices.Sorted(maps.Keys(last))
		list := make([]Action, 0, len(actions)+len(last))
		for at, a := range actions {
			list = append(list, a)
			for n := len(stages); n > 0 && last[stages[n-1]] <= at; n-- {
				list = append(list, Action{Kind: Reduce, Stage: stages[n-1]})
				stages = stages[:n-1]
			}
		}
		out.Workers[w] = list
	}
	return out
}

// WithoutReduce is the program as a single replica runs it: without reductions.
func (p *Program) WithoutReduce() *Program {
	return p.filtered(func(a Action) bool { return a.Kind != Reduce })
}

// Reduces reports whether the program reduces gradients over replicas.
func (p *Program) Reduces() bool {
	for _, actions := range p.Workers {
		for _, a := range actions {
			if a.Kind == Reduce {
				return true
			}
		}
	}
	return false
}
