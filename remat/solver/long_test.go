package solver

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	. "penstock.example/remat"
)

// blocks is a chain of layers that repeat after so many, times apart, which differ by a part of noise.
func blocks(layers, period int, noise float64, seed uint64) Chain {
	c := measured(period, seed)
	r := rand.New(rand.NewPCG(seed, 5))
	for i := range layers {
		l := c.Layers[i%period]
		factor := 1 + noise*(2*r.Float64()-1)
		l.Forward, l.ForwardNoGrad, l.Backward = l.Forward*factor, l.ForwardNoGrad*factor, l.Backward*factor
		c.Layers = append(c.Layers, l)
	}
	c.Layers = c.Layers[period:]
	return c
}

// TestLongChainsAreSolved: chains of hundreds of layers, alike or not, have plans under their
// limits within a hundredth of the bound.
func TestLongChainsAreSolved(t *testing.T) {
	for name, c := range map[string]Chain{"any": measured(300, 1), "blocks": blocks(280, 14, 0.05, 2), "equal blocks": blocks(270, 9, 0, 3), "alike": alikes(260)} {
		greatest, err := Greatest(c)
		if err != nil {
			t.Fatal(err)
		}
		for _, share := range []float64{0.3, 0.7} {
			limit := int64(share * float64(greatest))
			p, err := Solve(context.Background(), c, limit, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if err := CheckPlan(c, p); err != nil {
				t.Fatalf("%s, limit %v: %v", name, share, err)
			}
			gap := p.Time/p.LowerBound - 1
			if t.Logf("%s, limit %v: overhead %.3f %%, gap %.3f %%", name, share, 100*(p.Time/c.Once()-1), 100*gap); !p.Feasible || gap > 0.01 {
				t.Errorf("%s, limit %v: a gap of %.3f %%", name, share, 100*gap)
			}
		}
	}
}

// TestLongChainsNearTheLeast: at the least limit there is a plan, below it there is none.
func TestLongChainsNearTheLeast(t *testing.T) {
	c := measured(longChain, 4)
	least, _, err := Least(c)
	if err != nil {
		t.Fatal(err)
	}
	for limit, feasible := range map[int64]bool{least.Peak: true, least.Peak + 1000: true, least.Peak - 1: false} {
		p, err := Solve(context.Background(), c, limit, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := CheckPlan(c, p); err != nil || p.Feasible != feasible {
			t.Errorf("limit %d, least %d: feasible %v, %v", limit, least.Peak, p.Feasible, err)
		}
	}
}

// TestLongChainsStopWithTheirContext: a search that has been given up returns the context's error.
func TestLongChainsStopWithTheirContext(t *testing.T) {
	c := measured(longChain, 4)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Solve(ctx, c, shareOf(t, c, 0.5), Options{}); err != context.Canceled {
		t.Errorf("error %v", err)
	}
}

// small is a chain of few layers with all that chains can have.
func small(r *rand.Rand) Chain {
	size := func() int64 { return r.Int64N([]int64{2, 20, 1e6}[r.IntN(3)]) }
	c := Chain{Input: size(), InputGradient: size(), Loss: Loss{Backward: 1, Tmp: size()}}
	layers := 1 + r.IntN(14)
	for range layers {
		l := Layer{
			Forward: float64(r.IntN(20)), ForwardNoGrad: float64(r.IntN(20)), Backward: float64(r.IntN(20)),
			Output: size(), ForwardTmp: size(), ForwardNoGradTmp: size(), BackwardTmp: size(), Gradient: size(), WeightGradient: size(),
		}
		l.Saved = l.Output + size()
		if r.IntN(3) == 0 {
			l.BackwardEarly = r.Int64N(l.Saved + 1)
		}
		c.Layers = append(c.Layers, l)
	}
	for from := range layers {
		if to := from + 1 + r.IntN(layers-from); r.IntN(3) == 0 {
			c.Carries = append(c.Carries, Carry{From: from, To: to, Bytes: c.Layers[from].Output / 2})
			c.GradientCarries = append(c.GradientCarries, Carry{From: from, To: to, Bytes: c.Layers[to-1].Gradient / 4})
		}
	}
	return c
}

// TestBeamAndBoundHoldTheOptimum compares, on small chains of few cells, with the step functions:
// the bound is never above the optimum, plans keep their limits and are never below it, and most of
// them are it. What cells know of bytes is enough for a plan.
func TestBeamAndBoundHoldTheOptimum(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 12))
	plans, best := 0, 0
	for range 1500 {
		c := small(r)
		t1 := newTerms(c)
		b := newBounds(t1)
		s, err := newSteps(context.Background(), t1, b, math.MaxInt64)
		if err != nil {
			t.Fatal(err)
		}
		count := 1 + r.IntN(t1.n)
		cells, err := newCells(context.Background(), t1, count)
		if err != nil {
			t.Fatal(err)
		}
		for e := 1; e <= cells.ends(); e++ {
			l := cells.end(e)
			for i := range l + 1 {
				least, all := cells.of(i, l)
				exactLeast, exactAll := b.of(i, l)
				if all != exactAll || least < exactLeast || count == t1.n && least != exactLeast {
					t.Fatalf("(%d, %d) of %+v in %d cells: %d to %d bytes; want %d to %d", i, l, c, count, least, all, exactLeast, exactAll)
				}
			}
		}
		relaxed, err := newRelaxation(context.Background(), cells)
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range s.whole() {
			optimum := s.microseconds(step.price)
			if bound := relaxed.bound(step.bytes); bound > optimum*(1+1e-9) {
				t.Fatalf("%d bytes of %+v in %d cells: bound %v, optimum %v", step.bytes, c, count, bound, optimum)
			}
			if step.bytes < cells.least(0, t1.n) {
				continue
			}
			p := newPath(t1)
			(&beam{relaxation: relaxed, width: 1 + r.IntN(40)}).write(p, 0, t1.n, step.bytes)
			report, err := Check(c, p.ops)
			if err != nil || report.Peak != p.peak || report.Peak > c.Input+step.bytes || p.extra < optimum*(1-1e-9) {
				t.Fatalf("%d bytes of %+v in %d cells: peak %d, %v beyond once, optimum %v, %v", step.bytes, c, count, p.peak, p.extra, optimum, err)
			}
			plans++
			if p.extra <= optimum*(1+1e-9) {
				best++
			}
		}
	}
	if t.Logf("%d of %d plans are the fastest", best, plans); best*10 < plans*8 {
		t.Errorf("%d of %d plans are the fastest", best, plans)
	}
}

// TestConvexIsBelow compares the operations on convex functions with what they stand for, at every
// number of bytes.
func TestConvexIsBelow(t *testing.T) {
	functions := rapid.Custom(func(t *rapid.T) (f convex) {
		for range rapid.IntRange(0, 300).Draw(t, "vertices") {
			f = append(f, vertex{float64(rapid.IntRange(0, 400).Draw(t, "bytes")), float64(rapid.IntRange(0, 900).Draw(t, "time"))})
		}
		return convex{}.lower(nil, f.hull(), 0, 0, math.Inf(-1))
	})
	rapid.Check(t, func(t *rapid.T) {
		f, g := functions.Draw(t, "f"), functions.Draw(t, "g")
		bytes, time, from := float64(rapid.IntRange(0, 50).Draw(t, "bytes")), float64(rapid.IntRange(0, 50).Draw(t, "time")), float64(rapid.IntRange(0, 300).Draw(t, "from"))
		lower, sum := f.lower(nil, g, bytes, time, from), f.plus(nil, g)
		simple := append(convex(nil), lower...).simple()
		for m := -1.0; m < 500; m++ {
			moved := math.Inf(1)
			if m >= from {
				moved = g.at(m-bytes) + time
			}
			check := func(what string, got, most float64) {
				if got > most+1e-6 {
					t.Fatalf("%s at %v: %v, want at most %v", what, m, got, most)
				}
			}
			check("lower", lower.at(m), min(f.at(m), moved))
			check("plus", sum.at(m), f.at(m)+g.at(m))
			check("plus, from below", f.at(m)+g.at(m), sum.at(m))
			check("simple", simple.at(m), lower.at(m))
		}
		for k := range simple {
			if k > 0 && (simple[k].bytes <= simple[k-1].bytes || simple[k].time >= simple[k-1].time) {
				t.Fatal(fmt.Sprint(simple))
			}
		}
		if len(simple) > 2*mostVertices {
			t.Fatalf("%d vertices", len(simple))
		}
	})
}

// hull is the greatest convex function below vertices in any order.
func (f convex) hull() (out convex) {
	for _, v := range f {
		out = out.lower(nil, convex{v}, 0, 0, math.Inf(-1))
	}
	return out
}

// TestLongChainsOfAnyKind: sizes and times of nothing, very large ones, and memory that inputs share.
func TestLongChainsOfAnyKind(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 2))
	for _, kind := range []struct {
		reason      string
		bytes, time float64
		carries     int
	}{{"no bytes", 0, 1, 0}, {"no times", 1, 0, 0}, {"neither", 0, 0, 0}, {"up to 2^58 bytes", 1e8, 1, 0}, {"up to 10^17 us", 1, 1e10, 0}, {"shared inputs", 1, 1, 60}} {
		c := measured(longChain+5, 8)
		for i := range c.Layers {
			l := &c.Layers[i]
			for _, size := range []*int64{&l.Output, &l.Saved, &l.Gradient, &l.ForwardTmp, &l.ForwardNoGradTmp, &l.BackwardTmp} {
				*size = int64(float64(*size) * kind.bytes)
			}
			l.Forward, l.ForwardNoGrad, l.Backward = l.Forward*kind.time, l.ForwardNoGrad*kind.time, l.Backward*kind.time
		}
		for range kind.carries {
			from := r.IntN(len(c.Layers) - 100)
			c.Carries = append(c.Carries, Carry{From: from, To: from + 2 + r.IntN(90), Bytes: c.Layers[from].Output / 64})
		}
		least, _, err := Least(c)
		if err != nil {
			t.Fatal(err)
		}
		p, err := Solve(context.Background(), c, least.Peak+int64(0.4*float64(shareOf(t, c, 1)-least.Peak)), Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := CheckPlan(c, p); err != nil || !p.Feasible || p.Time > 1.01*p.LowerBound {
			t.Errorf("%s: feasible %v, %v us, at least %v, %v", kind.reason, p.Feasible, p.Time, p.LowerBound, err)
		}
	}
}

// TestTableOfALongChain: the points of its curve are plans under their limits, each with more bytes
// and less time than the one before, from the least limit to no recomputation.
func TestTableOfALongChain(t *testing.T) {
	c := measured(longChain, 6)
	table, err := NewTable(context.Background(), c, 0, Options{})
	if err != nil {
		t.Fatal(err)
	}
	curve := table.Curve()
	if last := curve[len(curve)-1]; len(curve) < pointsOfLongChain/2 || last.Time != table.t.once || last.Peak != shareOf(t, c, 1) {
		t.Fatalf("%d points, the last %+v", len(curve), last)
	}
	for k, point := range curve {
		if k > 0 && (point.Peak <= curve[k-1].Peak || point.Time >= curve[k-1].Time) {
			t.Errorf("%+v after %+v", point, curve[k-1])
		}
		if k%10 > 0 {
			continue
		}
		p := table.Plan(point.Limit)
		if err := CheckPlan(c, p); err != nil || p.Peak != point.Peak || p.Time != point.Time || p.LowerBound > p.Time {
			t.Errorf("%+v: peak %d, %v us, at least %v, %v", point, p.Peak, p.Time, p.LowerBound, err)
		}
	}
	if p := table.Plan(1); p.Feasible || p.Peak <= 1 {
		t.Errorf("under 1 byte: feasible %v, least %d", p.Feasible, p.Peak)
	}
}
