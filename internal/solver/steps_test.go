package solver_test

import (
	"context"
	"math/rand/v2"
	"testing"

	"penstock.example/internal/must"
	. "penstock.example/internal/solver"
	. "penstock.example/remat"
)

// ragged is a chain of few layers with large sizes that have nothing in common, of which a few are
// most of what there is.
func ragged(r *rand.Rand, layers int) Chain {
	size := func() int64 { return 1 + r.Int64N(int64(1)<<(10+r.IntN(20))) }
	c := Chain{Input: size(), InputGradient: size(), Loss: Loss{Backward: 1, Tmp: size()}}
	for range layers {
		time := func() float64 { return float64(1 + r.IntN(1000)) }
		l := Layer{Forward: time(), ForwardNoGrad: time(), Backward: time(), Output: size(),
			ForwardTmp:       size(),
			ForwardNoGradTmp: size(), BackwardTmp: size(), Gradient: size(), WeightGradient: size()}
		l.Saved = l.Output + size()
		c.Layers = append(c.Layers, l)
	}
	return c
}

// TestRaggedChainsAreSolvedExactly solves chains of sizes that no slots fit, at every limit where a
// faster plan becomes possible and one byte below, and compares with the recurrence itself.
func TestRaggedChainsAreSolvedExactly(t *testing.T) {
	r := rand.New(rand.NewPCG(610, 1))
	limits, slower := 0, 0
	for range 500 {
		c := ragged(r, 1+r.IntN(8))
		curve := must.Get(Curve(context.Background(), c, Options{}))(t)
		recurrence := newRecursion(c)
		for _, p := range curve {
			for _, limit := range []int64{p.Peak - 1, p.Peak} {
				got := must.Get(Solve(context.Background(), c, limit, Options{}))(t)
				if !got.Feasible {
					continue
				}
				must.Do(t, CheckPlan(c, got))
				limits++
				if want := c.Once() + recurrence.extra(0, len(c.Layers), limit-c.Input); got.Time != want ||
					got.LowerBound != want {
					slower++
					t.Errorf("%d layers, limit %d: time %v, bound %v; want %v", len(c.Layers), limit,
						got.Time, got.LowerBound, want)
				}
			}
		}
	}
	if t.Logf("%d of %d plans are not the fastest", slower, limits); limits < 4000 {
		t.Errorf("only %d limits", limits)
	}
}

// TestStepsAreWithinWhatTablesSay compares chains that are too long for the recurrence itself with
// the plans and the bounds of tables: of many slots, or of as many as make them exact.
func TestStepsAreWithinWhatTablesSay(t *testing.T) {
	r := rand.New(rand.NewPCG(610, 2))
	for range 40 {
		d := dice{layers: 20 + r.IntN(25), bytes: []int64{100, 1 << 30}[r.IntN(2)], carries: r.IntN(8),
			zeros: 0.05, weights: r.IntN(2) == 0, zeroTimes: r.IntN(2) == 0, gradientLikeOutputs: r.IntN(2) == 0}
		c := d.chain(r)
		curve := must.Get(Curve(context.Background(), c, Options{}))(t)
		least, _, err := Least(c)
		must.Do(t, err)
		greatest := greatestOf(t, c)
		if curve[0].Peak != least.Peak || curve[len(curve)-1].Time != c.Once() ||
			curve[len(curve)-1].Peak > greatest {
			t.Fatalf("a curve from %+v to %+v; the least is %d, the greatest %d", curve[0],
				curve[len(curve)-1], least.Peak, greatest)
		}
		for q := range int64(4) {
			limit := least.Peak + (greatest-least.Peak)*q/4
			got := must.Get(Solve(context.Background(), c, limit, Options{}))(t)
			must.Do(t, CheckPlan(c, got))
			other := must.Get(Solve(context.Background(), c, limit, Options{Steps: -1, Slots: 4000}))(t)
			if got.Time > other.Time || got.Time < other.LowerBound*(1-1e-9) || got.LowerBound != got.Time {
				t.Errorf("limit %d of %+v: time %v, bound %v; tables say %v, at least %v", limit, c,
					got.Time, got.LowerBound, other.Time, other.LowerBound)
			}
		}
	}
}

// TestTimesOfAnySizeAreCompared looks that chains whose times are very small, very large or 0 are
// solved as others are.
func TestTimesOfAnySizeAreCompared(t *testing.T) {
	r := rand.New(rand.NewPCG(610, 4))
	for _, scale := range []float64{0, 1e-300, 1e-9, 1e9, 1e15} {
		c := ragged(r, 8)
		for i := range c.Layers {
			c.Layers[i].ForwardNoGrad = float64(1+r.IntN(20)) * scale
			c.Layers[i].Forward, c.Layers[i].Backward = 0, 0
		}
		c.Loss.Backward = 0
		curve := must.Get(Curve(context.Background(), c, Options{}))(t)
		recurrence := newRecursion(c)
		for _, p := range curve {
			if want := recurrence.extra(0, 8, p.Peak-c.Input); p.Time < want*(1-1e-12) ||
				p.Time > want*(1+1e-12) {
				t.Errorf("times of %g: %v, want %v", scale, p.Time, want)
			}
		}
	}
}
