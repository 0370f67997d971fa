package solver

import "math"

// adviser estimates Opt(i, l, m), see terms.go, and the time of forwards without gradients, both in
// a unit of its own. [steps] are an exact adviser.
type adviser interface {
	at(i, l int, m int64) float64
	nograd(i, j int) float64
}

// write adds a plan of (i, l, m) to p; m must be at least the least of (i, l). At every interval it makes
// the choice that the adviser finds cheapest for the bytes left, among choices after which the bounds
// permit to finish. So the plan stays within m whatever the adviser says, and bytes lost by rounding at
// one interval serve the next. With an achievable grid the plan costs at most the grid's time of
// (i, l, m).
func (p *path) write(b *bounds, advice adviser, i, l int, m int64) {
	if _, all := b.of(i, l); m >= all {
		p.all(i, l)
		return
	}
	t := p.t
	j := choose(t, b, advice, i, l, m)
	if j == i {
		p.save(i, l)
		p.write(b, advice, i+1, l, m-t.saved[i])
		p.backward(i)
		return
	}
	p.compute(i, j, l)
	p.write(b, advice, j, l, m-t.kept(i, j))
	p.release(i, j)
	p.write(b, advice, i, j-1, m-t.weights(j, l))
}

// choose returns the j up to which x(i) is kept, or i to save. Of choices that cost the same it prefers
// saving, and then the fewest forwards.
func choose(t *terms, b *bounds, advice adviser, i, l int, m int64) int {
	best, cheapest := -1, math.Inf(1)
	if least, _ := b.of(i+1, l); m >= t.saving(i, l) && m-t.saved[i] >= least {
		best, cheapest = i, advice.at(i+1, l, m-t.saved[i])
	}
	for j := i + 1; j <= l && m >= t.sweeping(i, j, l); j++ {
		sweep := advice.nograd(i, j)
		if best >= 0 && sweep > cheapest {
			break
		}
		right, _ := b.of(j, l)
		left, _ := b.of(i, j-1)
		mRight, mLeft := m-t.kept(i, j), m-t.weights(j, l)
		if mRight < right || mLeft < left {
			continue
		}
		if cost := sweep + advice.at(j, l, mRight) + advice.at(i, j-1, mLeft); best < 0 || cost < cheapest {
			best, cheapest = j, cost
		}
	}
	return best
}

// sparing advises to save a layer before keeping an input, and to sweep as few layers as possible.
type sparing struct{}

func (sparing) at(int, int, int64) float64 { return 0 }

func (sparing) nograd(i, j int) float64 { return float64(j - i) }

// guide advises by a grid. If the grid has no time although the bytes suffice, it guesses a bit more than
// the time of the first slot with a time.
type guide struct{ *grid }

func (g guide) at(i, l int, m int64) float64 {
	v := g.grid.at(i, l, m)
	if least, _ := g.b.of(i, l); v == infinite && m >= least {
		v = g.rows[i*g.b.w+l].guess(g.grid.nograd(i, l))
	}
	return float64(v)
}

func (g guide) nograd(i, j int) float64 { return float64(g.grid.nograd(i, j)) }

// guess is a time for fewer bytes than r's first slot with a time. once is the time of all its layers
// without gradients.
func (r *row) guess(once float32) float32 {
	for _, v := range r.v {
		if v < infinite {
			return v * 1.25
		}
	}
	if r.tail < infinite {
		return r.tail + once/4
	}
	return 4 * once
}
