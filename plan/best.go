package plan

import (
	"context"
	"slices"
)

// found is the result of the search in a space.
type found struct {
	cut    cut   // the best; nil if none is below the step known before
	step   int64 // its time
	bound  int64 // no cut of the space takes less
	proved bool  // bound is the step, or the step known before, without coarse tables
}

// best searches the space for a cut with a step below known. Under limits it begins with the cut of
// even times; if that does not fit and no step is known, with any cut that fits. Once it has a cut
// it only proves of the others that none is below rival, the step of another schedule's plan.
func (p *space) best(ctx context.Context, known, rival int64) (found, error) {
	f := &finder{p: p, ctx: ctx, rival: rival, found: found{step: known}}
	if p.limited {
		if c, err := p.cutByTime(); err == nil {
			if _, err := f.try(c); err != nil {
				return found{}, err
			}
		}
	}
	if p.limited && f.cut == nil && known == none {
		l, err := p.lightest(ctx, wholeLimit+1)
		if err != nil {
			return found{}, err
		}
		if l.cut != nil {
			if _, err := f.try(l.cut); err != nil {
				return found{}, err
			}
		}
	}
	var err error
	if p.virtual == 1 {
		err = f.one()
	} else {
		err = f.several()
	}
	if err != nil {
		return found{}, err
	}
	if f.bound >= f.step {
		f.bound, f.proved = f.step, true
	}
	return f.found, ctx.Err()
}

type finder struct {
	found
	p     *space
	ctx   context.Context
	rival int64
	spent bool // the search ended before all cuts were looked at
}

// goal returns the step below which cuts are sought: the best known, under limits also of other
// schedules once a plan of this one is known.
func (f *finder) goal() int64 {
	if f.p.limited && f.step < none {
		return min(f.step, f.rival)
	}
	return f.step
}

// cannotBeat reports that a cut is no faster than a step, whatever is recomputed.
func (f *finder) cannotBeat(c cut, below int64) bool {
	p := f.p
	p.work += p.simulation.Actions()
	least := p.forwards(p.fast[p.stages()-1])
	times := make([]stageTimes, p.stages())
	for s := range times {
		times[s] = p.times(s, c[s], c[s+1])
		times[s].forward = min(times[s].forward, least[c[s+1]]-least[c[s]])
	}
	return p.simulate(c, times) >= below
}

func (f *finder) try(c cut) (int64, error) {
	if f.p.limited && f.cannotBeat(c, f.step) {
		return none, nil
	}
	took, err := f.p.evaluate(f.ctx, c)
	if err == nil && took < f.step {
		f.step, f.cut = took, slices.Clone(c)
	}
	return took, err
}

// workBudget returns the number of simulated actions after which the search ends.
func (p *space) workBudget() int {
	switch {
	case p.wishes.Work > 0:
		return p.wishes.Work
	case p.virtual == 1:
		return max(4_000_000, 1000*p.simulation.Actions())
	}
	return 4_000_000
}

func (f *finder) exhausted() bool {
	p := f.p
	planned := p.limited && p.oracle.solved >= p.wishes.plans()
	f.spent = f.spent || p.work >= p.workBudget() || planned || f.ctx.Err() != nil
	return f.spent
}

// cutByTime returns the cut of evenly balanced times.
func (p *space) cutByTime() (cut, error) {
	var costs []float64
	for _, l := range p.chain.Layers {
		costs = append(costs, l.Forward+l.Backward+1e-9)
	}
	counts, err := Partition(costs, p.stages())
	return cutOf(counts), err
}

// improve moves boundaries of the best cut as long as that shortens the step, at most tries times.
func (f *finder) improve(tries int) error {
	if f.cut == nil {
		return nil
	}
	for far := max(1, f.p.units/f.p.stages()/4); far > 0; far /= 2 {
		for again := true; again; {
			again = false
			for s := 1; s < f.p.stages(); s++ {
				for _, by := range []int{far, -far} {
					c := slices.Clone(f.cut)
					c[s] += by
					if c[s] <= c[s-1] || c[s] >= c[s+1] {
						continue
					}
					if tries--; tries < 0 || f.exhausted() {
						return nil
					}
					before := f.step
					if _, err := f.try(c); err != nil {
						return err
					}
					again = again || f.step < before
				}
			}
		}
	}
	return nil
}
