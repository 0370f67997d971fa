package solver

import "slices"

// spineFronts are the fronts of a spine.
type spineFronts struct {
	*steps
	fronts []front // by i
}

func newSpineFronts(s *steps, on *spine) *spineFronts {
	t, n := s.t, s.t.n
	e := &spineFronts{steps: s, fronts: make([]front, n+1)}
	var least envelope
	for i := n; i >= 0; i-- {
		least.clear()
		if i == n {
			least.add(free, 0, free, 0, 0, on.least[n])
		} else {
			least.add(e.fronts[i+1], t.saved[i], free, 0, 0, on.saving(i))
		}
		for j := i + 1; j <= n; j++ {
			right, move := free, int64(0) // of the loss after x(n) alone
			if j < n {
				right, move = e.fronts[j], t.kept(i, j)
			}
			least.add(right, move, s.fronts[i*(n+1)+j-1], t.weights(j, n), s.prices[j]-s.prices[i],
				on.keeping(i, j))
		}
		e.fronts[i] = slices.Clone(least.best)
	}
	return e
}

func (e *spineFronts) end(i int, m int64) float64 { return e.fronts[i].at(m) }

// spineRows are the rows of a spine in an achievable grid.
type spineRows struct {
	guide
	on   *spine
	rows []row // by i
}

func newSpineRows(g *grid, on *spine) *spineRows {
	n := g.t.n
	e := &spineRows{guide{g}, on, make([]row, n+1)}
	loss := row{lo: -1 << 40, tail: 0} // after x(n) alone
	for i := n; i >= 0; i-- {
		r := &e.rows[i]
		r.lo, r.n, r.tail = g.band(i, n, on.least[i], on.all[i])
		if r.n == 0 {
			continue
		}
		r.v = make([]float32, r.n)
		r.clear()
		if i < n {
			r.lowerTo(g.slotAbove(on.saving(i), i, n), &e.rows[i+1])
		}
		for j := i + 1; j <= n; j++ {
			right, move := &e.rows[j], int(g.moves[i*g.b.w+j])
			if j == n {
				right, move = &loss, 0
			}
			// keeping is at least on.least[i], so its slot is r.lo or later
			r.split(max(r.lo, g.slotAbove(on.keeping(i, j), i, n)), r.hi(), right, move, &g.rows[i*g.b.w+j-1],
				g.nograd(i, j))
		}
		r.close()
	}
	return e
}

// end returns the time of (i, L, m), in units of the grid's scale. If the row has no time although the
// bytes suffice, it guesses.
func (e *spineRows) end(i int, m int64) float64 {
	v := float32(0)
	switch {
	case m < e.on.least[i]:
		v = infinite
	case m < e.on.all[i]:
		if v = e.look(&e.rows[i], i, e.t.n, m); v == infinite {
			v = e.rows[i].guess(e.grid.nograd(i, e.t.n))
		}
	}
	return float64(v)
}
