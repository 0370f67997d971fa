package solver

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	. "penstock.example/remat"
)

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
				need = min(need, max(t.sweeping(i, j, l), t.kept(i, j)+least[[2]int{j, l}], t.weights(j, l)+least[[2]int{i, j - 1}]))
			}
			least[[2]int{i, l}] = need
		}
	}
	return least
}

// TestLeastIsThatOfTheRecurrence compares the least of a chain, and of intervals within it, with
// those of the recurrence over all intervals, and replays the plan.
func TestLeastIsThatOfTheRecurrence(t *testing.T) {
	const count = 4000
	searched := 0
	for seed := range count {
		r := rand.New(rand.NewPCG(uint64(seed), 10))
		c := uneven(r, 1+r.IntN(40))
		terms := newTerms(c)
		want, got := leastOfAll(terms), newLeasts(terms)
		if s := got.of(0, terms.n); s.low < s.high {
			searched++
		}
		p, at, err := Least(c)
		if err != nil {
			t.Fatal(err)
		}
		report, err := Check(c, p.Ops)
		if err != nil || p.Peak != c.Input+want[[2]int{0, terms.n}] || report.Peak != p.Peak || report.PeakOp != at || p.Limit != p.Peak {
			t.Fatalf("chain %d, %+v: peak %d at operation %d, replayed %d at %d, %v; want %d", seed, c, p.Peak, at, report.Peak, report.PeakOp, err, c.Input+want[[2]int{0, terms.n}])
		}
		terms = newTermsOf(c, r.IntN(2) == 0)
		want, got = leastOfAll(terms), newLeasts(terms)
		all := newBounds(terms)
		for range 10 {
			l := r.IntN(terms.n + 1)
			i := r.IntN(l + 1)
			_, every := all.of(i, l)
			s := *got.of(i, l)
			least := got.least(i, l)
			if least != want[[2]int{i, l}] || s.low > least || s.high < least || got.every.of(i, l) != every {
				t.Fatalf("(%d, %d) of chain %d, %+v: least %d between %d and %d, all %d; want %d and %d", i, l, seed, c, least, s.low, s.high, got.every.of(i, l), want[[2]int{i, l}], every)
			}
			w := newPath(terms)
			m := least + r.Int64N(every-least+1)
			if got.write(w, i, l, m); w.peak > max(c.Input+m, 0) {
				t.Fatalf("(%d, %d) of chain %d, %+v: a plan of %d bytes; want at most %d", i, l, seed, c, w.peak-c.Input, m)
			}
		}
	}
	if searched < count/20 {
		t.Errorf("the bounds decide %d chains of %d; want one in 20 that has to be searched", count-searched, count)
	}
}

// uneven is a chain whose sizes are of all magnitudes, so that forwards and gradients of some
// layers exceed all others.
func uneven(r *rand.Rand, layers int) Chain {
	spread := 1 + 9*r.Float64()
	size := func() int64 { return int64(math.Exp(spread * r.Float64())) }
	weights := r.IntN(3)
	c := Chain{Input: size(), InputGradient: size() * r.Int64N(2), Loss: Loss{Backward: 1, Tmp: size()}}
	for range layers {
		l := Layer{
			Forward: 1, ForwardNoGrad: 1, Backward: 2, Output: size(), ForwardTmp: size(), ForwardNoGradTmp: size(), BackwardTmp: size(),
			Gradient: size(),
		}
		l.Saved = l.Output
		if r.IntN(3) > 0 {
			l.Saved += size()
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
		if share := (Carry{From: from, To: to, Bytes: r.Int64N(c.Layers[from].Output + 1)}); !slices.ContainsFunc(c.Carries, func(k Carry) bool { return k.From == from }) {
			c.Carries = append(c.Carries, share)
		}
		if share := (Carry{From: from, To: to, Bytes: r.Int64N(c.Layers[to-1].Gradient + 1)}); !slices.ContainsFunc(c.GradientCarries, func(k Carry) bool { return k.To == to }) {
			c.GradientCarries = append(c.GradientCarries, share)
		}
	}
	return c
}
