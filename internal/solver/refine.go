package solver

import "context"

// refine looks for a plan under a limit that is feasible and asks for recomputation. It returns the
// plan and a bound of its time beyond once.
//
// An achievable grid guides a plan, and an optimistic grid another one; the second also bounds what
// any plan can do, and says which parts of the next grids no better plan can pass. The error is
// about proportional to the unit, so one pair tells how fine the next must be. The achievable grid
// can be coarser: choices are made for the bytes that are really left, so what rounding took is
// found again.
func refine(ctx context.Context, t *terms, b *bounds, limit int64, o Options) (best *path, bound float64,
	err error) {
	m := limit - t.chain.Input
	slots := o.Slots
	if o.Gap >= 0 {
		slots = max(slots/firstCoarser, 1)
	}
	unit := t.unitFor(m, slots)
	for coarser, last := int64(1), (*grid)(nil); ; coarser = 4 {
		for _, optimistic := range []bool{false, true} {
			g := newGrid(t, b, m, unit, optimistic)
			if !optimistic && unit > t.grain {
				g = newGrid(t, b, m, unit*coarser, false)
			}
			if last != nil {
				g.narrow(last, float32(best.extra/g.scale*(1+2*g.slack())))
			}
			if err := g.fill(ctx); err != nil {
				return nil, 0, err
			}
			for _, advice := range []adviser{guide{g, true}, guide{g, false}} {
				p := newPath(t)
				if p.write(b, advice, 0, t.n, m); best == nil || p.better(best) {
					best = p
				}
			}
			if optimistic {
				// If g leaves out all plans that are no better than the best one, that is the bound.
				bound = max(bound, min(best.extra, g.microseconds(g.at(0, t.n, m))*(1-g.slack())))
				last = g
			}
		}
		gap := (best.extra - bound) / (t.once + bound)
		if best.extra <= bound || gap <= o.Gap || o.Gap < 0 || unit == t.grain {
			return best, bound, nil
		}
		finer := max(min(0.7*o.Gap/gap, 0.5), 1.0/mostFiner, float64(last.size())/mostTable)
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
