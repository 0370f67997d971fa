package solver_test

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"penstock.example/internal/must"
	. "penstock.example/internal/solver"
	. "penstock.example/remat"
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

// TestCurve: no point beats another, every limit between has about the time of its plan, and the curve
// begins at the least limit and ends without recomputation.
func TestCurve(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, d := range append(kindsOfChains,
		dice{layers: 30, bytes: 1 << 30, weights: true, carries: 20, zeros: 0.1}) {
		for _, o := range []Options{{}, {Steps: -1, Slots: 1}, {Steps: -1, Slots: 7}, {Steps: -1}} {
			c := d.chain(r)
			curve := must.Get(Curve(context.Background(), c, o))(t)
			for i, p := range curve {
				if i > 0 && (p.Peak <= curve[i-1].Peak || p.Time >= curve[i-1].Time) {
					t.Fatalf("point %+v follows %+v", p, curve[i-1])
				}
				if best, err := Solve(context.Background(), c, p.Peak, Options{}); err != nil ||
					p.Time < best.Time*(1-1e-9) ||
					o.Steps == 0 && p.Time > best.Time*(1+1e-9) {
					t.Fatalf("point %+v of %+v; the best plan takes %v, %v", p, c, best.Time, err)
				}
			}
			least, _, err := Least(c)
			must.Do(t, err)
			if last := curve[len(curve)-1]; curve[0].Peak != least.Peak || last.Peak > greatestOf(t, c) ||
				last.Time != c.Once() {
				t.Fatalf("the curve of %+v is %+v; want it from %d to %d", c, curve, least.Peak,
					greatestOf(t, c))
			}
		}
	}
}

func TestSolversRefuse(t *testing.T) {
	ctx := context.Background()
	_, negative := Solve(ctx, dice{layers: 3, bytes: 10}.chain(rand.New(rand.NewPCG(1, 1))), -1, Options{})
	_, empty := Solve(ctx, Chain{}, 1, Options{})
	_, curve := Curve(ctx, Chain{}, Options{})
	_, _, least := Least(Chain{})
	for _, err := range []error{negative, empty, curve, least} {
		if err == nil || !strings.HasPrefix(err.Error(), "remat: ") {
			t.Error(err)
		}
	}
}

func TestSolversStopWithTheirContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	c := dice{layers: 30, bytes: 1 << 20}.chain(rand.New(rand.NewPCG(2, 1)))
	least, _, err := Least(c)
	must.Do(t, err)
	if _, err := Solve(ctx, c, least.Peak, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Solve: %v; want that the context has ended", err)
	}
	if _, err := Curve(ctx, c, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Curve: %v; want that the context has ended", err)
	}
	if _, err := NewStage(ctx, c, true, false); !errors.Is(err, context.Canceled) {
		t.Errorf("NewStage: %v; want that the context has ended", err)
	}
}
