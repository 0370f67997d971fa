package solver

import "context"

// search finds a plan under one limit. An achievable grid guides the plan and an optimistic grid
// bounds what any plan can do. Both become finer until plan and bound are close.
type search struct {
	t     *terms
	b     *bounds
	m     int64 // bytes beside x(0)
	best  *path
	bound float64 // microseconds beyond t.once
}

// refine searches under a limit that is feasible and asks for recomputation. It returns the plan
// and a bound of its time beyond once.
//
// The error of a grid is about proportional to its unit, so the first pair tells how fine the next
// must be. The achievable grid can be coarser than the optimistic one: choices are made for the
// bytes that are really left, so what rounding took is found again.
func refine(ctx context.Context, t *terms, b *bounds, limit int64, o Options) (*path, float64, error) {
	s := &search{t: t, b: b, m: limit - t.chain.Input}
	unit := t.unitFor(s.m, o.Slots)
	if o.Gap >= 0 {
		unit = t.unitFor(s.m, max(o.Slots/firstCoarser, 1))
	}
	var last *grid
	for {
		advice := s.grid(achievable, unit*coarser(last, unit == t.grain), last)
		if err := advice.fill(ctx); err != nil {
			return nil, 0, err
		}
		s.take(hopeful{advice})
		g := s.grid(optimistic, unit, last)
		if err := g.fill(ctx); err != nil {
			return nil, 0, err
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
	return s.best, s.bound, nil
}

// firstCoarser is the number of slots of Options that make one slot of the first grids. These take
// a small part of the time, and exclude half and more of the cells of the later ones.
const firstCoarser = 8

// mostFiner bounds how much finer the next grid is, because the errors of the last one predict only
// so much.
const mostFiner = 16

// coarser is the number of slots of the optimistic grid that make one of the achievable grid.
func coarser(last *grid, exact bool) int64 {
	if last == nil || exact {
		return 1
	}
	return 4
}

// grid is a new grid, not filled yet. It excludes cells that cannot be part of a plan better than
// the best so far, as the last optimistic grid shows.
func (s *search) grid(side rounding, unit int64, last *grid) *grid {
	g := newGrid(s.t, s.b, s.m, unit, side)
	if last != nil {
		g.narrow(last, float32(s.best.extra/g.scale*(1+2*g.slack())))
	}
	return g
}

// affordable is about the least unit, not below the one given, whose optimistic grid takes at most
// so many bytes.
func (s *search) affordable(unit int64, last *grid, most int64) int64 {
	for {
		size := s.grid(optimistic, unit, last).size()
		if size <= most {
			return unit
		}
		unit = s.t.multiple(max(unit+1, int64(float64(unit)*1.02*float64(size)/float64(most))))
	}
}

// take makes the plan that an adviser leads to, and keeps it if it is better than the best so far.
func (s *search) take(advice adviser) {
	p := newPath(s.t)
	p.write(s.b, advice, 0, s.t.n, s.m)
	if s.best == nil || p.better(s.best) {
		s.best = p
	}
}
