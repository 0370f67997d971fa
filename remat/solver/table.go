package solver

import (
	"cmp"
	"context"
	"math"
	"slices"

	"penstock.example/remat"
)

// Table answers for every limit up to a greatest one with a plan. The plan is the best if the table
// is exact, and otherwise as good as [Options].Slots permits. Methods may be called concurrently.
type Table struct {
	whole  *terms
	t      *terms // of the chain that is solved, whose layers may be joined ones
	joined *joined
	b      *bounds
	steps  *steps // nil if the table is not exact
	// grids are achievable. Each is for a quarter of the bytes of the one before, so that small
	// limits and small intervals have enough slots. All but the first have half the slots, which
	// are still twice as fine.
	grids []*grid
}

// NewTable makes the table of a chain for limits up to most bytes. If most is 0, or above the peak
// of a plan that recomputes nothing, it is for all limits. Of the options, Steps and Slots count.
// Chains of more than 250 layers are joined as in [Solve]. The error is a [*remat.ChainError], or
// ctx.Err() when ctx ends first.
func NewTable(ctx context.Context, c remat.Chain, most int64, o Options) (*Table, error) {
	t, o, err := prepare(ctx, c, most, o)
	if err != nil {
		return nil, err
	}
	table := &Table{whole: t, t: t}
	if t.n > mostLayers {
		j := join(t, mostLayers)
		table.joined, table.t = &j, newTerms(j.chain)
		t = table.t
	}
	b := newBounds(t)
	table.b = b
	least, all := b.of(0, t.n)
	m := max(most-t.chain.Input, 1)
	if most == 0 || m > all {
		m = max(slices.Max(b.all), 1) // of all intervals: with the gradient of its end there, one can need more than the whole chain does
	}
	if table.steps, err = newSteps(ctx, t, b, o.Steps); err != nil || table.steps != nil {
		return table, err
	}
	for slots := o.Slots; ; m, slots = m/4, max(o.Slots/2, 1) {
		g := newGrid(t, b, m, t.unitFor(m, slots), achievable)
		if err := g.fill(ctx); err != nil {
			return nil, err
		}
		table.grids = append(table.grids, g)
		if g.unit == t.grain || m/4 <= least {
			return table, nil
		}
	}
}

// grid is the finest for m bytes.
func (t *Table) grid(m int64) *grid {
	k := len(t.grids) - 1
	for k > 0 && t.grids[k].most < m {
		k--
	}
	return t.grids[k]
}

// Exact reports whether the table's plans are the fastest.
func (t *Table) Exact() bool { return t.steps != nil && t.joined == nil }

// Plan is the table's plan under a limit, as [Solve] returns one. The LowerBound of a table that is
// not exact is the time of running everything once. The least limit that the table of a long chain
// tells may be slightly too large.
func (t *Table) Plan(limit int64) remat.Plan {
	m := limit - t.t.chain.Input
	least, all := t.b.of(0, t.t.n)
	switch {
	case limit == 0:
		m = all
	case m < least:
		return remat.Plan{Limit: limit, Peak: t.t.chain.Input + least, Chain: t.whole.chain.Fingerprint()}
	}
	bound := t.whole.once
	if t.Exact() {
		bound = math.Inf(1)
	}
	return t.path(m).plan(limit, bound)
}

// path is a plan with m bytes beside x(0), least or more.
func (t *Table) path(m int64) *path {
	p := newPath(t.t)
	if t.steps != nil {
		p = t.steps.path(m)
	} else {
		p.write(t.b, hopeful{t.grid(m)}, 0, t.t.n, m)
	}
	if t.joined != nil {
		p = t.joined.path(t.whole, p)
	}
	return p
}

// Point is a plan on a curve of time over memory: with the limit that it was found under,
// [Table.Plan] returns it.
type Point struct {
	Limit, Peak int64   // bytes
	Time        float64 // microseconds
}

// Curve is the plans of the table that no other of them beats, by ascending peak and descending
// time: from the least limit that has a plan to that where nothing is computed again, or to the
// table's greatest. Every point is a plan that exists, with its exact peak; if the table is exact,
// every plan that no other beats is a point. It is empty if the table's greatest limit is below the
// least.
func (t *Table) Curve() []Point {
	limits := t.limits()
	points := make([]Point, len(limits))
	_ = parallel(context.Background(), len(limits), func(k int) {
		p := t.path(limits[k])
		points[k] = Point{t.t.chain.Input + limits[k], p.peak, p.t.once + p.extra}
	})
	slices.SortStableFunc(points, func(a, b Point) int {
		return cmp.Or(cmp.Compare(a.Peak, b.Peak), cmp.Compare(a.Time, b.Time))
	})
	curve := points[:0]
	for _, p := range points {
		if len(curve) == 0 || p.Time < curve[len(curve)-1].Time {
			curve = append(curve, p)
		}
	}
	return curve
}

// limits are the m for which the table may have a new plan: the breakpoints; or the least and the
// greatest and all slots between.
func (t *Table) limits() (ms []int64) {
	if t.steps != nil {
		for _, s := range t.steps.whole() {
			ms = append(ms, s.bytes)
		}
		return ms
	}
	least, all := t.b.of(0, t.t.n)
	most := min(all, t.grids[0].most)
	if most < least {
		return nil
	}
	ms = []int64{least, most}
	for k, g := range t.grids {
		from := least
		if k+1 < len(t.grids) {
			from = max(least, t.grids[k+1].most+1)
		}
		for s := g.slotAbove(from, 0, t.t.n); g.bytes(s, 0, t.t.n) < min(g.most+1, most); s++ {
			ms = append(ms, g.bytes(s, 0, t.t.n))
		}
	}
	return ms
}
