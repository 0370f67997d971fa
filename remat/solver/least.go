package solver

import (
	"math"

	"penstock.example/remat"
)

// Least is a plan of the least peak that there is, exactly, and the first operation at that peak,
// as an index into its Ops: what must shrink for less to be enough. Its limit is its peak; it does
// not try to be fast, as [Solve] does at that limit. The error is a [*remat.ChainError].
func Least(c remat.Chain) (p remat.Plan, peakOp int, err error) {
	if err := c.Check(); err != nil {
		return remat.Plan{}, 0, err
	}
	t := newTerms(c)
	b := newLeasts(t)
	w := newPath(t)
	b.write(w, 0, t.n, b.least(0, t.n))
	return w.plan(w.peak, t.once), w.peakOp, nil
}

// Greatest is the peak of the plan that recomputes nothing, in bytes: the limit from which on there
// is nothing to win. The error is a [*remat.ChainError].
func Greatest(c remat.Chain) (int64, error) {
	if err := c.Check(); err != nil {
		return 0, err
	}
	t := newTerms(c)
	p := newPath(t)
	p.all(0, t.n)
	return p.peak, nil
}

// leasts answer how many bytes (i, l) needs, exactly, for the few intervals that a question leads
// to. [bounds] solve the same recurrence for all intervals, in O(L³).
//
// Two bounds of least(i, l) decide most questions; row finds them in O(L) steps for an i and all l.
// The upper one is the plan that keeps x(i) alone and computes every other input from it. The lower
// one is what every plan needs: at the backward of layer k, x(k) and what that backward takes; while
// y(l+1) waits, one forward of every layer before l. They differ where a forward that has to pass
// x(i)'s layers does not fit beside a later gradient, so that inputs beyond have to be kept. There
// the recurrence is followed, which takes O(L³) steps at worst.
type leasts struct {
	t     *terms
	every savings
	rows  [][]span // of i, at l-i; nil until it is asked for
}

// span is what is known of a least number of bytes: it is from low to high. Some plan takes high.
type span struct{ low, high int64 }

func newLeasts(t *terms) *leasts {
	return &leasts{t: t, every: newSavings(t), rows: make([][]span, t.n+1)}
}

// row fills the bounds of all intervals that begin with i.
func (b *leasts) row(i int) []span {
	if b.rows[i] != nil {
		return b.rows[i]
	}
	t := b.t
	row := make([]span, t.n+1-i)
	const none = math.MinInt64 / 4
	backward, alone, forward := int64(none), int64(none), int64(none)
	for l := i; l <= t.n; l++ {
		last, kept, swept := t.saving(l, l), int64(0), int64(none)
		if l > i {
			kept, swept = t.kept(i, l), t.sweeping(i, l, l)
			layer, before := &t.chain.Layers[l-1], int64(0)
			if l-1 > i {
				before = t.kept(i, l-1)
			}
			forward = max(forward, before+min(layer.Output+layer.ForwardNoGradTmp, layer.Saved+layer.ForwardTmp))
		}
		gradients := t.weights(l, l)
		alone = max(swept, kept+last, alone+gradients)
		row[l-i] = span{low: max(kept+last, backward+gradients, t.under[l+1]+forward), high: min(alone, b.every.of(i, l))}
		if l < t.n {
			backward = max(backward+gradients, kept+t.savingLate(l, l))
		}
	}
	b.rows[i] = row
	return row
}

// of is what is known of (i, l).
func (b *leasts) of(i, l int) *span { return &b.row(i)[l-i] }

// least is the bytes m from which on (i, l) has a plan. Of the beginnings that the recurrence has it
// follows those that may need less than the best one so far.
func (b *leasts) least(i, l int) int64 {
	t, s := b.t, b.of(i, l)
	if s.low == s.high {
		return s.low
	}
	if saving := t.saving(i, l); max(saving, t.saved[i]+b.of(i+1, l).low) < s.high {
		s.high = min(s.high, max(saving, t.saved[i]+b.least(i+1, l)))
	}
	for j := i + 1; j <= l && s.low < s.high; j++ {
		swept, kept, weights := t.sweeping(i, j, l), t.kept(i, j), t.weights(j, l)
		if swept >= s.high {
			break // sweep grows with j
		}
		if kept+b.of(j, l).low < s.high && weights+b.of(i, j-1).low < s.high {
			if right := kept + b.least(j, l); right < s.high {
				s.high = min(s.high, max(swept, right, weights+b.least(i, j-1)))
			}
		}
	}
	s.low = s.high
	return s.low
}

// write adds a plan of (i, l, m) to p, m >= of(i, l).high. It saves a layer rather than keep an
// input, and sweeps as few layers as it can, where that is known to end within m.
func (b *leasts) write(p *path, i, l int, m int64) {
	if m >= b.every.of(i, l) {
		p.all(i, l)
		return
	}
	t := b.t
	if m >= t.saving(i, l) && m-t.saved[i] >= b.of(i+1, l).high {
		p.save(i, l)
		b.write(p, i+1, l, m-t.saved[i])
		p.backward(i)
		return
	}
	j := i + 1
	for m-t.kept(i, j) < b.of(j, l).high || m-t.weights(j, l) < b.of(i, j-1).high {
		j++ // no farther than the beginning that of(i, l).high is from
	}
	p.compute(i, j, l)
	b.write(p, j, l, m-t.kept(i, j))
	p.release(i, j)
	b.write(p, i, j-1, m-t.weights(j, l))
}

// savings know from how many bytes on nothing is computed again: all(i, l) of [newBounds], without
// its table.
type savings struct {
	t *terms
	// early and late are the two moments of saving of every layer, as far as they depend on the
	// layer alone.
	early, late maxima
}

func newSavings(t *terms) savings {
	early, late := make([]int64, t.n), make([]int64, t.n)
	for k := range t.n {
		early[k] = t.savedSum[k] + t.savingEarly(k)
		late[k] = t.savedSum[k] + t.savingLate(k, k) - t.gradSum[k+1]
	}
	return savings{t, newMaxima(early), newMaxima(late)}
}

// of is all(i, l).
func (s savings) of(i, l int) int64 {
	t := s.t
	last, all := min(l, t.n-1), int64(math.MinInt64)
	if i <= last {
		all = max(t.under[l+1]+s.early.of(i, last), t.gradSum[l+1]+s.late.of(i, last)) - t.savedSum[i]
	}
	if l == t.n {
		all = max(all, t.savedSum[t.n]-t.savedSum[i]+t.saving(t.n, t.n))
	}
	return all
}
