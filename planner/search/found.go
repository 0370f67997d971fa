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
	proved bool  // the bound is the step, or what was known before
}

// best searches the space for a cut whose step takes less than known. Under limits, where nothing is known, it
// begins with any cut that fits; that there is none is a proof, however many devices may be planned. It does not look for better ones
// once it has one and no cut takes less than rival, which is known of another space.
func (p *space) best(ctx context.Context, known, rival int64) (found, error) {
	f := &finder{p: p, ctx: ctx, rival: rival, found: found{step: known}}
	if p.limited && known == none {
		l, err := p.fitting(ctx, p.wishes.plans())
		if err != nil {
			return found{}, err
		}
		if l.cut == nil && !l.spent {
			f.bound, f.proved = known, true // no cut fits
			return f.found, ctx.Err()
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

// finder is a search in a space.
type finder struct {
	found
	p     *space
	ctx   context.Context
	rival int64
	spent bool // the search ended before all cuts were looked at
}

// try evaluates a cut.
func (f *finder) try(c cut) (int64, error) {
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
		return max(4_000_000, 1000*len(p.program.list))
	}
	return 4_000_000
}

// over says that the search is to end.
func (f *finder) over() bool {
	p := f.p
	f.spent = f.spent || p.work >= p.enough() || p.limited && p.oracle.solved >= p.wishes.plans() || f.ctx.Err() != nil ||
		p.limited && f.cut != nil && f.bound >= f.rival
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
