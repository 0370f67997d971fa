package solver

import (
	"cmp"
	"context"
	"slices"

	"penstock.example/remat"
)

// Point is a plan on a curve of time over memory.
type Point struct {
	Peak int64   `json:"peak_bytes"`
	Time float64 `json:"time_us"`
}

// Curve returns the best plans by ascending peak and descending time, from the least limit with a plan to
// the limit from which on nothing is recomputed. Every point is a plan with its exact peak. If
// Options.Steps suffice, every plan that no other beats is a point; otherwise Options.Slots limits their
// quality. Chains of more than 250 layers are joined as in [Solve]. The error is a [*remat.ChainError],
// or ctx.Err() when ctx ends first.
func Curve(ctx context.Context, c remat.Chain, o Options) ([]Point, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	whole := newTerms(c)
	t, joins := whole, (*joined)(nil)
	if t.n > mostLayers {
		joins = join(t, mostLayers)
		t = newTerms(joins.chain)
	}
	b := newBounds(t)
	var plans []func() *path
	s, err := newSteps(ctx, t, b, o.Steps)
	if err != nil {
		return nil, err
	}
	if s != nil {
		for _, at := range s.whole() {
			plans = append(plans, func() *path { return s.path(at.bytes) })
		}
	} else if plans, err = tablePlans(ctx, t, b, o.Slots); err != nil {
		return nil, err
	}
	points := make([]Point, len(plans))
	err = parallel(ctx, len(plans), func(k int) {
		p := plans[k]()
		if joins != nil {
			p = joins.path(whole, p)
		}
		points[k] = Point{p.peak, t.once + p.extra}
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
	return curve, err
}

// tablePlans returns the plans of an achievable table, for every slot from the least bytes to no
// recomputation.
func tablePlans(ctx context.Context, t *terms, b *bounds, slots int) (plans []func() *path, err error) {
	least, all := b.of(0, t.n)
	// an interval can need more than the whole chain, as it includes the gradient at its end
	m := max(slices.Max(b.all), 1)
	g := newGrid(t, b, m, t.unitFor(m, slots), false)
	list := []int64{least, all}
	for k := g.slotAbove(least, 0, t.n); g.bytes(k, 0, t.n) < all; k++ {
		list = append(list, g.bytes(k, 0, t.n))
	}
	for _, m := range list {
		plans = append(plans, func() *path {
			p := newPath(t)
			p.write(b, guide{g}, 0, t.n, m)
			return p
		})
	}
	return plans, g.fill(ctx)
}
