package schedule

import (
	"cmp"
	"fmt"
	"slices"
)

// Fixed returns the generator of one given program, such as [Parse] returns. The generator fails
// for another number of stages, for more micro-batches, and for stages that share workers
// otherwise. For fewer micro-batches it returns the program of the first ones ([Program.Fewer]).
// Workers get the numbers that the config gives them.
//
// The config decides recomputations and skips. If the program has others, recomputations are left
// out, or stand directly before their backward, and all transfers are placed anew around the
// computations, which keep their order. The same is done if the program cannot run on links of the
// config's capacity.
//
// The program is not changed, and must not change while the generator is in use. Fixed panics if it
// is nil.
func Fixed(p *Program) Generator {
	return func(c Config) (*Program, error) {
		out, err := p.adapted(c)
		if err != nil {
			return nil, fmt.Errorf("schedule: a given program: %w", err)
		}
		return out, nil
	}
}

func (p *Program) adapted(c Config) (*Program, error) {
	if err := Check(p, Limits{}); err != nil {
		return nil, err
	}
	out, placement, err := c.program()
	switch {
	case err != nil:
		return nil, err
	case p.Phase != Whole || p.Stages != c.Stages || p.MicroBatches < c.MicroBatches:
		return nil, fmt.Errorf("it is %v, for %d stages and %d micro-batches; want a whole one for %d and %d or more",
			p.Phase, p.Stages, p.MicroBatches, c.Stages, c.MicroBatches)
	}
	out.Capacity = cmp.Or(out.Capacity, p.Capacity)
	given := p.Fewer(c.MicroBatches)
	if given.Workers, err = renumbered(given, placement); err != nil {
		return nil, err
	}
	given.Capacity = out.Capacity
	if slices.Equal(given.Skips, out.Skips) && given.otherRecomputation(c) == "" && Check(given, Limits{}) == nil {
		return given, nil
	}
	order, recomputed := make(order, len(given.Workers)), given.recomputed()
	for w, actions := range given.Workers {
		for _, a := range actions {
			recompute := Action{Recompute, a.Stage, a.MicroBatch, 0}
			switch wants := c.recomputes(a.Stage, a.MicroBatch); {
			case a.Kind.Transfer(), a.Kind == Recompute && !wants:
				continue
			case a.Kind.gradients() && wants && !recomputed[recompute]:
				order[w] = append(order[w], recompute)
			}
			order[w] = append(order[w], a)
		}
	}
	out.fill(order)
	out.meet(c.time())
	return out, nil
}

// renumbered returns the workers' lists of a program in the order that a placement gives them. All
// stages of a worker must be on one worker of the placement, and no others.
func renumbered(p *Program, placement []int) ([][]Action, error) {
	out := make([][]Action, slices.Max(placement)+1)
	from, to := map[int]int{}, map[int]int{} // by worker of the placement: that of the program, and back
	for s, w := range p.Placement() {
		known, had := from[placement[s]]
		other, has := to[w]
		if had && known != w || has && other != placement[s] {
			return nil, fmt.Errorf("its stages are on the workers %v, and %v are asked for", p.Placement(), placement)
		}
		from[placement[s]], to[w], out[placement[s]] = w, placement[s], p.Workers[w]
	}
	return out, nil
}

// recomputed has the program's recomputations.
func (p *Program) recomputed() map[Action]bool {
	out := map[Action]bool{}
	for _, actions := range p.Workers {
		for _, a := range actions {
			if a.Kind == Recompute {
				out[a] = true
			}
		}
	}
	return out
}

// otherRecomputation says which recomputation the program has and the config does not ask for, or
// the other way round; nothing if there is none.
func (p *Program) otherRecomputation(c Config) string {
	recomputed := p.recomputed()
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
