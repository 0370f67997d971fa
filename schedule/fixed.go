package schedule

import (
	"fmt"
	"maps"
	"slices"

	"penstock.example/internal/arg"
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
	arg.Must(p, "schedule: Fixed: the program", "one such as GPipe or Parse makes")
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
	case p.Phase != Whole:
		return nil, fmt.Errorf("it is %v, want one of a whole step", p.Phase)
	case p.Stages != c.Stages:
		return nil, fmt.Errorf("it has %d stages, and %d are asked for", p.Stages, c.Stages)
	case p.MicroBatches < c.MicroBatches:
		return nil, fmt.Errorf("it has %d micro-batches, and %d are asked for", p.MicroBatches,
			c.MicroBatches)
	}
	if out.Capacity == 0 {
		out.Capacity = p.Capacity
	}
	given := p.Fewer(c.MicroBatches)
	workers, err := renumbered(given, placement)
	if err != nil {
		return nil, err
	}
	given.Workers, given.Capacity = workers, out.Capacity
	if slices.Equal(given.Skips, out.Skips) && given.recomputesAs(c) && Check(given, Limits{}) == nil {
		return given, nil
	}
	order, recomputed := make(order, len(workers)), given.recomputed()
	for w, actions := range workers {
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

// renumbered returns the workers' lists of a program in the order that a placement gives them.
func renumbered(p *Program, placement []int) ([][]Action, error) {
	out := make([][]Action, slices.Max(placement)+1)
	from := map[int]int{} // by worker of the placement: that of the program
	for w, actions := range p.Workers {
		for _, a := range actions {
			to := placement[a.Stage]
			if was, known := from[to]; known && was != w {
				return nil, fmt.Errorf("stage %d is on worker %d of it, and shares worker %d with stages of its worker %d", a.Stage, w, to, was)
			}
			from[to] = w
		}
	}
	if len(slices.Compact(slices.Sorted(maps.Values(from)))) < len(from) {
		return nil, fmt.Errorf("it has stages on one worker that are asked for on several: %v", placement)
	}
	for to, w := range from {
		out[to] = p.Workers[w]
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

// recomputesAs reports whether the program recomputes as a config asks.
func (p *Program) recomputesAs(c Config) bool {
	_, _, _, found := p.recomputesElse(c)
	return !found
}

// recomputesElse finds a micro-batch on a stage that the program recomputes and the config does not
// ask for, or the other way round.
func (p *Program) recomputesElse(c Config) (stage, microBatch int, asked, found bool) {
	recomputed := p.recomputed()
	for s := range p.Stages {
		for i := range p.MicroBatches {
			if asked := c.recomputes(s, i); recomputed[Action{Recompute, s, i, 0}] != asked {
				return s, i, asked, true
			}
		}
	}
	return 0, 0, false, false
}
