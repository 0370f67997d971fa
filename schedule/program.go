package schedule

import (
	"fmt"
	"maps"
	"slices"
)

// Phase says which part of a training step a program covers.
type Phase uint8

const (
	// Whole is forward and backward. In between, the last stage computes the loss.
	Whole Phase = iota
	// ForwardOnly stops when every micro-batch has left the last stage.
	ForwardOnly
	// BackwardOnly begins where ForwardOnly stopped, when the caller has computed the loss. It
	// contains the recomputations.
	BackwardOnly
)

var phaseWords = []string{"whole", "forward-only", "backward-only"}

// String returns the phase's word in the header of a program's text form.
func (p Phase) String() string {
	if int(p) < len(phaseWords) {
		return phaseWords[p]
	}
	return fmt.Sprintf("phase(%d)", uint8(p))
}

// covers reports whether the phase has the forwards of a step or, unless forward, its backwards.
func (p Phase) covers(forward bool) bool { return p == Whole || forward == (p == ForwardOnly) }

// Program lists the actions of every worker in one training step. A worker performs its actions in
// the order listed, and waits before each until its dependencies are done (see [Graph]). A worker
// may have nothing to do.
//
// A Program is plain data, and may be wrong: [Check] says whether it can run.
type Program struct {
	Stages       int
	MicroBatches int
	Phase        Phase
	Workers      [][]Action

	// Skips are the pairs of stages, other than neighbours, with a link of their own. For each skip
	// and micro-batch the activation is sent and received, and the gradient back. They are sorted
	// by From and To, each once.
	Skips []Edge

	// Capacity is how many values may wait on a link between neighbours, sent and not yet received.
	// They take memory of the sending stage. Zero is any number; Meet is none. Links of skips, and
	// links within a worker, always hold any number.
	Capacity int
}

// Meet is the capacity of a link on which nothing waits: a sender goes on when its value is taken.
const Meet = -1

// Placement returns the worker of each stage, -1 for a stage without actions. The stages of all
// actions must exist, as they do if the program passes [Check].
func (p *Program) Placement() []int {
	out := slices.Repeat([]int{-1}, p.Stages)
	for w, actions := range p.Workers {
		for _, a := range actions {
			out[a.Stage] = w
		}
	}
	return out
}

// Part is one phase of a whole program, in the program's order. It passes [Check] if the program
// does, as no forward needs a backward.
func (p *Program) Part(phase Phase) *Program {
	part := p.filtered(func(a Action) bool { return phase.covers(a.Kind.forward()) })
	part.Phase = phase
	return part
}

// Apart reports whether every worker ends its forwards before its first backward or recomputation.
// Only then do the two phases, run one after the other, hold no more than the whole program.
func (p *Program) Apart() bool {
	for _, actions := range p.Workers {
		backward := false
		for _, a := range actions {
			if backward && a.Kind == Forward {
				return false
			}
			backward = backward || !a.Kind.forward() && !a.Kind.Transfer()
		}
	}
	return true
}

// Fewer is the program of its first micro-batches alone, for a batch with fewer rows. It passes
// [Check] if the program does, and holds no more at any time.
func (p *Program) Fewer(microBatches int) *Program {
	fewer := p.filtered(func(a Action) bool { return a.MicroBatch < microBatches })
	fewer.MicroBatches = microBatches
	return fewer
}

// Without is the program without the recomputations to drop. Every program can do without them.
func (p *Program) Without(drop func(Action) bool) *Program {
	return p.filtered(func(a Action) bool { return a.Kind != Recompute || !drop(a) })
}

// filtered returns a copy with the actions to keep.
func (p *Program) filtered(keep func(Action) bool) *Program {
	out := *p
	out.Workers = make([][]Action, len(p.Workers))
	for w, actions := range p.Workers {
		for _, a := range actions {
			if keep(a) {
				out.Workers[w] = append(out.Workers[w], a)
			}
		}
	}
	out.Skips = slices.Clone(p.Skips)
	return &out
}

// actionsOf returns the program's actions of a kind.
func (p *Program) actionsOf(kind Kind) map[Action]bool {
	out := map[Action]bool{}
	for _, actions := range p.Workers {
		for _, a := range actions {
			if a.Kind == kind {
				out[a] = true
			}
		}
	}
	return out
}

// otherRecomputation names a recomputation that only the program or only the config has.
func (p *Program) otherRecomputation(c Config) string {
	recomputed := p.actionsOf(Recompute)
	for s := range p.Stages {
		for i := range p.MicroBatches {
			a := Action{Recompute, s, i, 0}
			if asked := c.recomputes(s, i); recomputed[a] != asked {
				return fmt.Sprintf("%v is there: %t, and asked for: %t", a, !asked, asked)
			}
		}
	}
	return ""
}

// AddReduce returns the program of a pipeline with replicas, each on rows of its own. The gradients
// of a stage are reduced ([Reduce]) after its last computation, and after the sends that directly
// follow, for which other stages wait. For 2 stages:
//
//	worker 0: ... 1>0B1 0B1 0RED
//	worker 1: ... 1B1 1B1>0 1RED
//
// The reductions of a worker are in descending order of stages. A reduction waits for all replicas,
// and their backwards may end in different orders; with one order for all, no two wait for each
// other. Reductions that p has are placed anew. p must pass [Check] and is not changed.
func AddReduce(p *Program) *Program {
	out := p.WithoutReduce()
	for w, actions := range out.Workers {
		last := map[int]int{} // by stage: its reduction may follow this action
		for at, a := range actions {
			known, some := last[a.Stage]
			if a.Kind == Backward || a.Kind == BackwardWeight || a.Kind.Send() && some && known == at-1 {
				last[a.Stage] = at
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

// WithoutReduce is the program without reductions, for a single replica.
func (p *Program) WithoutReduce() *Program {
	return p.filtered(func(a Action) bool { return a.Kind != Reduce })
}

// Reduces reports whether the program reduces gradients over replicas.
func (p *Program) Reduces() bool { return len(p.actionsOf(Reduce)) > 0 }

// InFlight returns, for each worker, the most micro-batches that its stages have in flight
// together: the number of autograd graphs held. A micro-batch is in flight on a stage from its
// forward, or from its recomputation if it has one, to the end of its backward, of both parts. In a
// [BackwardOnly] program the forwards are done. The program must pass [Check].
func InFlight(p *Program) []int {
	recomputed := p.actionsOf(Recompute)
	most := make([]int, len(p.Workers))
	for w, actions := range p.Workers {
		now := 0
		recomputes := func(a Action) bool { return recomputed[Action{Recompute, a.Stage, a.MicroBatch, 0}] }
		for _, a := range actions {
			if p.Phase == BackwardOnly && a.Kind.gradients() && !recomputes(a) {
				now++
			}
		}
		most[w] = now
		for _, a := range actions {
			switch {
			case a.Kind == Recompute, a.Kind == Forward && !recomputes(a):
				now++
			case a.Kind == Backward, a.Kind == BackwardWeight:
				now--
			}
			most[w] = max(most[w], now)
		}
	}
	return most
}
