package solver

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"penstock.example/internal/must"
	. "penstock.example/remat"
)

// measured is a chain without regularity: forwards of 1 to 10 ms and backwards of twice that;
// outputs of 1 to 10 MB, of which once to four times as much is saved; temporaries up to an
// output's size.
func measured(layers int, seed uint64) Chain {
	r := rand.New(rand.NewPCG(seed, 339))
	between := func(a, b float64) float64 { return a + (b-a)*r.Float64() }
	input := int64(between(1e6, 10e6))
	c := Chain{Input: input, InputGradient: input}
	for range layers {
		forward, output := between(1000, 10000), between(1e6, 10e6)
		l := Layer{
			Forward: forward, ForwardNoGrad: forward, Backward: 2 * forward,
			Output: int64(output), Saved: int64(output * between(1, 4)), Gradient: int64(output),
			ForwardTmp: int64(between(0, output)), BackwardTmp: int64(between(0, output)),
		}
		l.ForwardNoGradTmp = l.ForwardTmp
		c.Layers = append(c.Layers, l)
	}
	return c
}

// limits are the least limit of a chain, and the peak without recomputation.
func limits(t testing.TB, c Chain) (least, greatest int64) {
	t.Helper()
	p, _, err := Least(c)
	must.Do(t, err)
	return p.Peak, greatestOf(t, c)
}

// greatestOf is the peak of the plan that recomputes nothing.
func greatestOf(t testing.TB, c Chain) int64 {
	t.Helper()
	return must.Get(Check(c, None(len(c.Layers))))(t).Peak
}

// TestLongChains: layers of long chains are joined, and yet there is a plan from the least limit on,
// and none below it. The more bytes, the less time; plans of a joined chain are near the best.
func TestLongChains(t *testing.T) {
	c := measured(mostLayers+50, 4)
	least, greatest := limits(t, c)
	for _, test := range []struct {
		limit    int64
		overhead float64 // at most; 0 is any
	}{{least - 1, 0}, {least, 0}, {least + (greatest-least)/5, 0.23}, {least + (greatest-least)/2,
		0.12}, {greatest, 1e-9}} {
		p := must.Get(Solve(context.Background(), c, test.limit, Options{Gap: 0.01}))(t)
		if err := CheckPlan(c, p); err != nil {
			t.Fatalf("limit %d: %v", test.limit, err)
		}
		if p.Feasible != (test.limit >= least) || !p.Feasible && p.Peak != least {
			t.Errorf("limit %d: feasible %v, peak %d; the least is %d", test.limit, p.Feasible, p.Peak, least)
		}
		overhead := p.Time/c.Once() - 1
		if t.Logf("limit %d: overhead %.4f", test.limit, overhead); test.overhead > 0 &&
			overhead > test.overhead {
			t.Errorf("limit %d: overhead %.3f; want at most %v", test.limit, overhead, test.overhead)
		}
	}
	curve := must.Get(Curve(context.Background(), c, Options{Slots: 100}))(t)
	for k, point := range curve {
		if k > 0 && (point.Peak <= curve[k-1].Peak || point.Time >= curve[k-1].Time) {
			t.Errorf("%+v after %+v", point, curve[k-1])
		}
	}
	if last := curve[len(curve)-1]; len(curve) < 50 || last.Peak != greatest ||
		math.Abs(last.Time-c.Once()) > 1 {
		t.Errorf("%d points, the last %+v", len(curve), last)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Solve(ctx, c, (least+greatest)/2, Options{}); err != context.Canceled {
		t.Errorf("error %v", err)
	}
}

// TestPlansOfJoinedLayersAreExact: a plan of a joined chain has the same bytes and time on the
// layers that were joined.
func TestPlansOfJoinedLayersAreExact(t *testing.T) {
	for seed := range 3000 {
		r := rand.New(rand.NewPCG(uint64(seed), 12))
		c := uneven(r, 2+r.IntN(14))
		whole := newTerms(c, false)
		j := join(whole, 1+r.IntN(whole.n))
		if err := j.chain.Check(); err != nil {
			t.Fatalf("%+v joined at %v: %v", c, j.first, err)
		}
		least, greatest := limits(t, j.chain)
		if same := greatestOf(t, c); same != greatest {
			t.Fatalf("%+v joined at %v: %d bytes at most, want %d", c, j.first, greatest, same)
		}
		p, _, _, err := solveTerms(context.Background(), newTerms(j.chain, false), least+
			r.Int64N(greatest-least+1), Options{Steps: 1 << 30})
		must.Do(t, err)
		report, err := Check(c, j.path(whole, p).ops)
		if time := whole.once + p.extra; err != nil || report.Peak != p.peak ||
			math.Abs(report.Time-time) > 1e-9*time {
			t.Fatalf("%+v joined at %v: peak %d, want %d; %v us, want %v; %v", c, j.first, report.Peak,
				p.peak, report.Time, time, err)
		}
	}
}

// TestLeastIsThatOfTheRecurrence compares the least of intervals with the recurrence, and replays
// the plans that take no more.
func TestLeastIsThatOfTheRecurrence(t *testing.T) {
	for seed := range 2000 {
		r := rand.New(rand.NewPCG(uint64(seed), 10))
		c := uneven(r, 1+r.IntN(40))
		terms := newTerms(c, r.IntN(2) == 0)
		want, b := leastOfAll(terms), newBounds(terms)
		for l := range terms.n + 1 {
			for i := range l + 1 {
				least, all := b.of(i, l)
				if least != want[[2]int{i, l}] {
					t.Fatalf("(%d, %d) of chain %d, %+v: least %d, want %d", i, l, seed, c, least,
						want[[2]int{i, l}])
				}
				w := newPath(terms)
				m := least + r.Int64N(all-least+1)
				if w.write(b, sparing{}, i, l, m); w.peak > max(c.Input+m, 0) {
					t.Fatalf("(%d, %d) of chain %d, %+v: a plan of %d bytes; want at most %d", i, l, seed,
						c, w.peak-c.Input, m)
				}
			}
		}
		p, at, err := Least(c)
		must.Do(t, err)
		report, err := Check(c, p.Ops)
		if err != nil || report.Peak != p.Peak || p.Ops[report.PeakOp] != at || p.Limit != p.Peak {
			t.Fatalf("chain %d, %+v: peak %d at operation %v, replayed %d at %d, %v", seed, c, p.Peak, at,
				report.Peak, report.PeakOp, err)
		}
	}
}

// leastOfAll is the least of every interval, as the recurrence says it, without a thought of time.
func leastOfAll(t *terms) map[[2]int]int64 {
	least := map[[2]int]int64{}
	for l := range t.n + 1 {
		for i := l; i >= 0; i-- {
			need := t.saving(i, l)
			if i < l {
				need = max(need, t.saved[i]+least[[2]int{i + 1, l}])
			}
			for j := i + 1; j <= l; j++ {
				need = min(need, max(t.sweeping(i, j, l), t.kept(i, j)+least[[2]int{j, l}], t.weights(j, l)+
					least[[2]int{i, j - 1}]))
			}
			least[[2]int{i, l}] = need
		}
	}
	return least
}

// uneven is a chain whose sizes are of all magnitudes, so that forwards and gradients of some
// layers exceed all others.
func uneven(r *rand.Rand, layers int) Chain {
	spread := 1 + 9*r.Float64()
	size := func() int64 { return int64(math.Exp(spread * r.Float64())) }
	weights := r.IntN(3)
	c := Chain{Input: size(), InputGradient: size() * r.Int64N(2), Loss: Loss{Backward: 1, Tmp: size()}}
	for range layers {
		l := Layer{Forward: 1, ForwardNoGrad: 1, Backward: 2, Output: size(), ForwardTmp: size(),
			ForwardNoGradTmp: size(), BackwardTmp: size(), Gradient: size()}
		l.Saved = l.Output
		if r.IntN(3) > 0 {
			l.Saved += size()
		}
		if r.IntN(3) == 0 {
			l.BackwardEarly = r.Int64N(l.Saved + 1)
		}
		if r.IntN(3) < weights {
			l.WeightGradient = size()
		}
		c.Layers = append(c.Layers, l)
	}
	for range r.IntN(5) {
		from := r.IntN(layers)
		to := from + 1 + r.IntN(layers-from)
		// A layer's output is shared by one carry, and so is a gradient.
		share := Carry{From: from, To: to, Bytes: r.Int64N(c.Layers[from].Output + 1)}
		if !slices.ContainsFunc(c.Carries, func(k Carry) bool { return k.From == from }) {
			c.Carries = append(c.Carries, share)
		}
		share.Bytes = r.Int64N(c.Layers[to-1].Gradient + 1)
		if !slices.ContainsFunc(c.GradientCarries, func(k Carry) bool { return k.To == to }) {
			c.GradientCarries = append(c.GradientCarries, share)
		}
	}
	return c
}
