package schedule

import "slices"

// Part is one phase of a whole program: forwards with their transfers, or
// recomputations and backwards with theirs, in the program's order. It passes [Check] if the
// program does, as no forward needs a backward.
func (p *Program) Part(phase Phase) *Program {
	part := p.filtered(func(a Action) bool {
		return a.Kind.forward() && phase.forward() || !a.Kind.forward() && phase.backward()
	})
	part.Phase = phase
	return part
}

// Apart reports whether every worker ends its forwards before its first backward or recomputation.
// Only then do the parts of the program, one run after the other, hold no more than the whole does.
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

// Fewer is the program for its first micro-batches alone, as a batch with fewer rows has them. It
// passes [Check] if the program does, and holds no more at any time, as micro-batches do not need
// each other. The number is from 1 to MicroBatches.
func (p *Program) Fewer(microBatches int) *Program {
	fewer := p.filtered(func(a Action) bool { return a.MicroBatch < microBatches })
	fewer.MicroBatches = microBatches
	return fewer
}

// Without is the program without some of its recomputations, which no other action needs. Nil takes
// none out.
func (p *Program) Without(drop func(Action) bool) *Program {
	return p.filtered(func(a Action) bool { return a.Kind != Recompute || drop == nil || !drop(a) })
}

// filtered is a copy with those actions that are to be kept.
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
