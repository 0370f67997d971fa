package search

import (
	"context"
	"slices"

	"penstock.example/balance"
)

// found is what the search in a space came to.
type found struct {
	cut    cut   // the best; nil if none is below what was known before
	step   int64 // its time
	bound  int64 // no cut of the space takes less
	proved bool  // the bound is the step, or what was known before, and not by coarse tables
}

// best searches the space for a cut whose step takes less than known. Under limits it begins with the cut of even
// times, and if that does not fit and no step is known with any that does. Once it has a cut it proves of the others
// only that none takes less than rival, which is the step of another schedule's plan.
func (p *space) best(ctx context.Context, known, rival int64) (found, error) {
	f := &finder{p: p, ctx: ctx, rival: rival, found: found{step: known}}
	if p.limited {
		if c, err := p.even(); err == nil {
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
		if l.cut == nil && l.all {
			f.bound, f.proved = known, true // no cut fits
			return f.found, nil
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
		f.bound, f.proved = f.step, !p.limited || !p.oracle.rough
	}
	return f.found, ctx.Err()
}

// finder is a search in a space.
type finder struct {
	found
	p     *space
	ctx   context.Context
	rival int64
	spent bool // the search ended before all cuts were looked at
}

// goal is the step below which cuts are sought: the best that is known, under limits of other schedules too once there is
// a plan of this one.
func (f *finder) goal() int64 {
	if f.p.limited && f.step < none {
		return min(f.step, f.rival)
	}
	return f.step
}

// hopeless says that a cut's step is not below that, whatever is recomputed.
func (f *finder) hopeless(c cut, below int64) bool {
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

// try evaluates a cut.
func (f *finder) try(c cut) (int64, error) {
	if f.p.limited && f.hopeless(c, f.step) {
		return none, nil
	}
	took, err := f.p.evaluate(f.ctx, c)
	if err == nil && took < f.step {
		f.step, f.cut = took, slices.Clone(c)
	}
	return took, err
}

// enough is the work after which the search ends.
func (p *space) enough() int {
	switch {
	case p.wishes.Work > 0:
		return p.wishes.Work
	case p.virtual == 1:
		return max(4_000_000, 1000*p.simulation.Actions())
	}
	return 4_000_000
}

// over says that the search is to end.
func (f *finder) over() bool {
	p := f.p
	f.spent = f.spent || p.work >= p.enough() || p.limited && p.oracle.solved >= p.wishes.plans() || f.ctx.Err() != nil
	return f.spent
}

// even is the cut of evenly balanced times.
func (p *space) even() (cut, error) {
	var costs []float64
	for _, l := range p.chain.Layers {
		costs = append(costs, l.Forward+l.Backward+1e-9)
	}
	counts, err := balance.Partition(costs, p.stages())
	return cutOf(counts), err
}

// improve moves borders of the best cut as long as that shortens the step, and at most so often.
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
					if tries--; tries < 0 || f.over() {
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
