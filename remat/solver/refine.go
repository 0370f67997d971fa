package solver

import (
	"context"

	"penstock/remat"
)

// search is the way to a plan under one limit: an achievable grid advises a plan, an optimistic one
// bounds what any plan can do, and both become finer until the two are close.
type search struct {
	t     *terms
	b     *bounds
	m     int64 // bytes beside x(0)
	best  *path
	bound float64 // microseconds beyond t.once
}

// refine searches under limit, which is feasible and asks for recomputation.
//
// The error of either grid is about in proportion to its unit, so the first pair tells how fine the
// next must be. The optimistic one errs several times as much (the other's advice is followed on
// the bytes that are really left, and what rounding took is found again), so the other is made
// coarser.
func refine(ctx context.Context, t *terms, b *bounds, limit int64, o Options) (remat.Plan, error) {
	s := &search{t: t, b: b, m: limit - t.chain.Input}
	unit := t.unitFor(s.m, o.Slots)
	if o.Gap >= 0 {
		unit = t.unitFor(s.m, max(o.Slots/firstCoarser, 1))
	}
	var last *grid
	for {
		advice := s.grid(achievable, unit*coarser(last, unit == t.grain), last)
		if err := advice.fill(ctx); err != nil {
			return remat.Plan{}, err
		}
		s.take(hopeful{advice})
		g := s.grid(optimistic, unit, last)
		if err := g.fill(ctx); err != nil {
			return remat.Plan{}, err
		}
		s.take(hopeful{g})
		s.take(halfway{advice, g})
		// Where g leaves out what is no better than the best plan, that plan is the bound.
		s.bound = max(s.bound, min(s.best.extra, g.microseconds(g.at(0, t.n, s.m))*(1-g.slack())))
		last = g
		gap := (s.best.extra - s.bound) / (t.once + s.bound)
		if s.best.extra <= s.bound || gap <= o.Gap || o.Gap < 0 || unit == t.grain {
			break
		}
		next := s.affordable(t.multiple(max(int64(float64(unit)*min(0.7*o.Gap/gap, 0.5)), unit/mostFiner)), last, o.MaxTable)
		if float64(next) > 0.8*float64(unit) {
			break
		}
		unit = next
	}
	return s.best.plan(limit, t.once+s.bound), nil
}

// firstCoarser is how many slots of Options are one of the first grids. They take a small part of
// the time, and say of half and more of the others' cells that they are not worth a look.
const firstCoarser = 8

// mostFiner is how many times finer than the last a grid is at most: the last one's errors tell
// only so much.
const mostFiner = 16

// coarser is how many slots of the optimistic grid make one of the achievable one; one where
// nothing is rounded.
func coarser(last *grid, exact bool) int64 {
	if last == nil || exact {
		return 1
	}
	return 4
}

// grid is one that is not filled yet, without what the best plan so far and an optimistic grid, if
// there are such, say is not worth a look.
func (s *search) grid(side rounding, unit int64, last *grid) *grid {
	g := newGrid(s.t, s.b, s.m, unit, side)
	if last != nil {
		g.narrow(last, float32(s.best.extra/g.scale*(1+2*g.slack())))
	}
	return g
}

// affordable is the least unit from the one given on whose optimistic grid takes at most so many
// bytes, or nearly so.
func (s *search) affordable(unit int64, last *grid, most int64) int64 {
	for {
		size := s.grid(optimistic, unit, last).size()
		if size <= most {
			return unit
		}
		unit = s.t.multiple(max(unit+1, int64(float64(unit)*1.02*float64(size)/float64(most))))
	}
}

// take keeps the plan that an adviser gives if it is better than all before.
func (s *search) take(advice adviser) {
	p := newPath(s.t)
	p.write(s.b, advice, 0, s.t.n, s.m)
	if s.best == nil || p.better(s.best) {
		s.best = p
	}
}
