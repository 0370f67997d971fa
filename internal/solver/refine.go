package solver

import "context"

// refine plans under a limit that is feasible and needs recomputation. It returns the plan, and a lower
// bound of any plan's time beyond once.
//
// An achievable grid guides a plan, and an optimistic grid another plan and the bound. The error is about
// proportional to the unit, so a pair of grids tells how fine the next pair must be. The achievable grid
// can be coarser, as its plan is chosen for the exact bytes left.
func refine(ctx context.Context, t *terms, b *bounds, limit int64, o Options) (best *path, bound float64,
	err error) {
	m := limit - t.chain.Input
	slots := o.Slots
	if o.Gap >= 0 {
		slots = max(slots/8, 1) // the first grids take a small part of the time
	}
	unit := t.unitFor(m, slots)
	for coarser, size := int64(1), int64(0); ; coarser = 4 {
		for _, optimistic := range []bool{false, true} {
			g := newGrid(t, b, m, unit, optimistic)
			if !optimistic && unit > t.grain {
				g = newGrid(t, b, m, unit*coarser, false)
			}
			if err := g.fill(ctx); err != nil {
				return nil, 0, err
			}
			p := newPath(t)
			if p.write(b, guide{g}, 0, t.n, m); best == nil || p.extra < best.extra {
				best = p
			}
			if size = g.size(); optimistic {
				bound = max(bound, min(best.extra, g.microseconds(g.at(0, t.n, m))*(1-g.slack())))
			}
		}
		gap := (best.extra - bound) / (t.once + bound)
		if best.extra <= bound || gap <= o.Gap || o.Gap < 0 || unit == t.grain {
			return best, bound, nil
		}
		// The last errors are no sure prediction, and a grid may take about 128 MiB.
		finer := max(min(0.7*o.Gap/gap, 0.5), 1.0/16, float64(size)/(128<<20))
		next := t.multiple(int64(float64(unit) * finer))
		if float64(next) > 0.8*float64(unit) {
			return best, bound, nil
		}
		unit = next
	}
}
