package solver_test

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	"penstock.example/internal/must"
	. "penstock.example/internal/solver"
)

var kindsOfChains = []dice{
	{layers: 1, bytes: 20, zeros: 0.1, weights: true},
	{layers: 2, bytes: 20, carries: 2, zeros: 0.1, weights: true},
	{layers: 3, bytes: 30, carries: 3, zeros: 0.1, weights: true},
	{layers: 4, bytes: 12, carries: 4, zeros: 0.3, weights: true, zeroTimes: true},
	{layers: 5, bytes: 100, carries: 4, zeros: 0.1, weights: true},
	{layers: 5, bytes: 100, zeros: 0, gradientLikeOutputs: true},
	{layers: 5, bytes: 2, carries: 4, zeros: 0, zeroTimes: true},
	{layers: 6, bytes: 50, carries: 6, zeros: 0.2, weights: true, zeroTimes: true},
}

// TestSolveFindsTheBestOfAllPlans compares with every plan that there is, at every limit at which
// the answer changes and one byte below each.
func TestSolveFindsTheBestOfAllPlans(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, d := range kindsOfChains {
		plans := everyPlan(d.layers, 0, d.layers)
		for range 100 {
			c := d.chain(r)
			tallies := make([]tally, len(plans))
			for i, ops := range plans {
				tallies[i] = must.Get(run(c, ops))(t)
			}
			slices.SortFunc(tallies, func(a, b tally) int { return int(a.peak - b.peak) })
			least := tallies[0].peak
			for i, step := range tallies {
				if i > 0 && step.peak == tallies[i-1].peak {
					continue
				}
				for _, limit := range []int64{step.peak - 1, step.peak} {
					if limit <= 0 {
						continue
					}
					exact := r.IntN(2) == 0
					o := Options{Gap: 1e-12}
					if !exact {
						o.Steps = -1
					}
					p := must.Get(Solve(context.Background(), c, limit, o))(t)
					if limit < least {
						if p.Feasible || p.Peak != least {
							t.Fatalf("limit %d of %+v: feasible %v, peak %d; want no plan below %d", limit,
								c, p.Feasible, p.Peak, least)
						}
						continue
					}
					best, recomputed, peak := -1.0, 0, int64(0)
					for _, other := range tallies {
						if other.peak <= limit &&
							(best < 0 ||
								cmp.Or(cmp.Compare(other.time, best),
									cmp.Compare(other.recomputed, recomputed), cmp.Compare(other.peak,
										peak)) < 0) {
							best, recomputed, peak = other.time, other.recomputed, other.peak
						}
					}
					got, err := run(c, p.Ops)
					if err != nil {
						t.Fatalf("limit %d of %+v: %v", limit, c, err)
					}
					if !p.Feasible || got.peak > limit || got.peak != p.Peak || got.time != p.Time {
						t.Fatalf("limit %d of %+v: the plan says %+v, and is %+v", limit, c, p, got)
					}
					if got.time != best || p.LowerBound > best || p.LowerBound < best*(1-1e-5) {
						t.Fatalf("limit %d of %+v: time %v, bound %v; want %v", limit, c, got.time,
							p.LowerBound, best)
					}
					if exact && (p.LowerBound != best || got.recomputed != recomputed || got.peak != peak) {
						t.Fatalf("limit %d of %+v: bound %v, %d recomputations, peak %d; want %v, %d, %d",
							limit, c, p.LowerBound, got.recomputed, got.peak, best, recomputed, peak)
					}
				}
			}
		}
	}
}
