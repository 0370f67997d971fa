package solver

import "math"

// bounds are, for every interval (i, l) of layers, the least m of the recurrence with a plan, and the
// least m with a plan that recomputes nothing. They are exact, in O(L³) and O(L²).
type bounds struct {
	w          int     // of a row
	least, all []int64 // at i*w+l
	leastDown  []int64 // the transpose of least, so that the recursion reads both along a row
}

// newBounds solves the recurrence for the least m instead of the least time:
//
//	least(i, l) = min(max(saving(i, l), Saved(i) + least(i+1, l)), min over j of
//	                  max(|y(l+1)| + sweep(i, j), a(i, j) + least(j, l), G(j, l) + least(i, j-1)))
//	all(i, l)   = max(saving(i, l), Saved(i) + all(i+1, l))
func newBounds(t *terms) *bounds {
	w := t.n + 1
	b := &bounds{w: w, least: make([]int64, w*w), leastDown: make([]int64, w*w), all: make([]int64, w*w)}
	for l := range w {
		for i := l; i >= 0; i-- {
			b.solve(t, i, l)
		}
	}
	return b
}

// solve fills (i, l) after all intervals within it.
func (b *bounds) solve(t *terms, i, l int) {
	w := b.w
	least := t.saving(i, l)
	all := least
	if i < l {
		all = max(all, t.saved[i]+b.all[(i+1)*w+l])
		least = max(least, t.saved[i]+b.least[(i+1)*w+l])
		y, grads := t.yHeld[l+1], t.gradSum[l+1]
		pair := t.pair(i, i+1)
		kept, sweep := t.a[pair:pair+l-i], t.sweep[pair:pair+l-i] // from x(i+1) on
		right, left := b.leastDown[l*w:(l+1)*w], b.least[i*w:(i+1)*w]
		for j := i + 1; j <= l; j++ {
			swept := y + sweep[j-i-1]
			if swept >= least {
				break // sweep grows with j
			}
			least = min(least, max(swept, kept[j-i-1]+right[j], grads-t.gradSum[j]+left[j-1]))
		}
	}
	b.least[i*w+l], b.leastDown[l*w+i], b.all[i*w+l] = least, least, all
}

func (b *bounds) of(i, l int) (least, all int64) { return b.least[i*b.w+l], b.all[i*b.w+l] }

// infinite is the time of an infeasible interval.
var infinite = float32(math.Inf(1))
