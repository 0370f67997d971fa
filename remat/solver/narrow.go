package solver

import "sort"

// narrow excludes from g, which is not filled yet, the cells that no plan with a time below cost
// can pass, because the interval alone costs more in the optimistic grid by. cost is in units of
// scale. Excluded cells count as infinite, so where a time of g is above cost, cost is the bound.
func (g *grid) narrow(by *grid, cost float32) {
	w := g.b.w
	g.worth = cost
	for i := range w {
		for l := i; l < w; l++ {
			worth := cost
			if l < g.t.n {
				worth -= g.nograd(i, l+1) // to come back to x(i) there was a sweep from it, beyond l
			}
			g.rows[i*w+l].narrow(g, &by.rows[i*w+l], by, i, l, worth)
		}
	}
}

// narrow excludes from the row of (i, l) in g what costs more than worth in another grid.
func (r *row) narrow(g *grid, coarse *row, by *grid, i, l int, worth float32) {
	k := sort.Search(len(coarse.v), func(k int) bool { return coarse.v[k] <= worth })
	if k == coarse.n && coarse.tail > worth {
		r.lo, r.n, r.tail = r.hi(), 0, infinite
		return
	}
	// The slot before this one says that it is not worth it, or holds less than least, for all
	// bytes up to its own.
	lo := g.slotAbove(by.bytes(coarse.lo+k-1, i, l)+1, i, l)
	if lo > r.lo {
		r.n, r.lo = max(r.n-(lo-r.lo), 0), lo
	}
}
