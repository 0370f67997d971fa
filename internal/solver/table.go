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
	t := newTerms(c, false)
	if t.n > mostLayers {
		t = newTerms(join(t, mostLayers).chain, false)
	}
	s := &Stage{t: t}
	if err := s.solve(ctx, o.Steps, o.Slots); err != nil {
		return nil, err
	}
	var points []Point
	for _, p := range s.front(nil, newSpine(t, s.b, available{}), 0) {
		points = append(points, Point{max(p.Forward, p.Backward), t.once + p.Time})
	}
	slices.SortStableFunc(points, func(a, b Point) int {
		return cmp.Or(cmp.Compare(a.Peak, b.Peak), cmp.Compare(a.Time, b.Time))
	})
	curve := points[:0]
	for _, p := range points {
		if len(curve) == 0 || p.Time < curve[len(curve)-1].Time {
			curve = append(curve, p)
		}
	}
	return curve, nil
}
