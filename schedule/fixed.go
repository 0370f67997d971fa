package schedule

import (
	"cmp"
	"fmt"
	"slices"
)

// Fixed returns the generator of one given program, which must not change. The generator fails if
// the config has another number of stages, more micro-batches, or other stages on a worker. For
// fewer micro-batches it returns the program of the first ones ([Program.Fewer]).
//
// The config decides recomputations, skips and capacity. If the program has others, or cannot run
// at this capacity, its computations keep their order: recomputations are dropped, or added
// directly before their backward, and all transfers are placed anew.
func Fixed(p *Program) Generator {
	return func(c Config) (*Program, error) {
		out, err := p.adapted(c)
		if err != nil {
			err = fmt.Errorf("schedule: a given program: %w", err)
		}
		return out, err
	}
}

func (p *Program) adapted(c Config) (*Program, error) {
	if err := Check(p); err != nil {
		return nil, err
	}
	out, placement, err := c.emptyProgram()
	switch {
	case err != nil:
		return nil, err
	case p.Phase != Whole || p.Stages != c.Stages || p.MicroBatches < c.MicroBatches:
		return nil, fmt.Errorf("it is %v, for %d stages and %d micro-batches; want a whole one for %d and "+
			"%d or more", p.Phase, p.Stages, p.MicroBatches, c.Stages, c.MicroBatches)
	}
	given := p.Fewer(c.MicroBatches)
	given.Capacity = cmp.Or(c.Capacity, p.Capacity)
	lists := given.Workers
	given.Workers = make([][]Action, len(out.Workers))
	own := p.Placement()
	for s, w := range placement {
		given.Workers[w] = lists[own[s]]
	}
	if len(lists) != len(out.Workers) || !slices.Equal(given.Placement(), placement) {
		return nil, fmt.Errorf("its stages are on the workers %v, and %v are asked for", own, placement)
	}
	if slices.Equal(given.Skips, out.Skips) && given.otherRecomputation(c) == "" && Check(given) == nil {
		return given, nil
	}
	out.Capacity = given.Capacity
	workers, recomputed := make([][]Action, len(given.Workers)), given.actionsOf(Recompute)
	for w, actions := range given.Workers {
		for _, a := range actions {
			recompute := Action{Recompute, a.Stage, a.MicroBatch, 0}
			switch wants := c.recomputes(a.Stage, a.MicroBatch); {
			case a.Kind.Transfer(), a.Kind == Recompute && !wants:
				continue
			case a.Kind.gradients() && wants && !recomputed[recompute]:
				workers[w] = append(workers[w], recompute)
			}
			workers[w] = append(workers[w], a)
		}
	}
	out.fill(workers)
	out.meet()
	return out, nil
}
