package solver

import "context"

// refine looks for a plan under a limit that is feasible and asks for recomputation. It returns the
// plan and a bound of its time beyond once.
//
// An achievable grid guides a plan, and an optimistic grid another one; the second also bounds what
// any plan can do. The error is about proportional to the unit, so one pair tells how fine the next
// must be. The achievable grid can be coarser: choices are made for the bytes that are really left,
// so what rounding took is found again.
func refine(ctx context.Context, t *terms, b *bounds, limit int64, o Options) (best *path, bound float64,
	err error) {
	m := limit - t.chain.Input
	slots := o.Slots
	if o.Gap >= 0 {
		slots = max(slots/firstCoarser, 1)
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
			if p.write(b, guide{g}, 0, t.n, m); best == nil || p.better(best) {
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
		finer := max(min(0.7*o.Gap/gap, 0.5), 1.0/mostFiner, float64(size)/mostTable)
		next := t.multiple(int64(float64(unit) * finer))
		if float64(next) > 0.8*float64(unit) {
			return best, bound, nil
		}
		unit = next
	}
}

const (
	// firstCoarser is the number of slots of Options that make one slot of the first grids, which
	// take a small part of the time.
	firstCoarser = 8
	// mostFiner bounds how much finer the next grid is, as the errors of the last one are no sure
	// prediction.
	mostFiner = 16
	// mostTable is about the most bytes that a grid may take.
	mostTable = 128 << 20
)
