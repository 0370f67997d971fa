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
			least.add(right, move, s.fronts[i*(n+1)+j-1], t.weights(j, n), s.prices[j]-s.prices[i], on.keeping(i, j))
		}
		e.fronts[i] = slices.Clone(least.best)
	}
	return e
}

func (e *spineFronts) end(i int, m int64) float64 { return e.fronts[i].at(m) }

// spineRows are the rows of a spine in an achievable or an optimistic grid.
type spineRows struct {
	hopeful
	on    *spine
	rows  []row     // by i
	cells []float32 // of the rows
}

func newSpineRows(g *grid, on *spine) *spineRows {
	e := &spineRows{}
	e.fill(g, on)
	return e
}

// fill computes e for a spine. It reuses the memory of e.
func (e *spineRows) fill(g *grid, on *spine) {
	n := g.t.n
	*e = spineRows{hopeful: hopeful{g}, on: on, rows: sized(e.rows, n+1), cells: e.cells}
	cells := 0
	for i := range e.rows {
		r := &e.rows[i]
		r.lo, r.n, r.tail = g.band(i, n, on.least[i], on.all[i])
		cells += r.n
	}
	e.cells = sized(e.cells, cells)
	v := e.cells
	loss := row{lo: -1 << 40, tail: 0} // after x(n) alone
	for i := n; i >= 0; i-- {
		r := &e.rows[i]
		r.v, v = v[:r.n:r.n], v[r.n:]
		if r.n == 0 {
			continue
		}
		r.clear()
		r.follow(g.slotAbove(on.saving(i), i, n), &e.rows[i+1])
		for j := i + 1; j <= n; j++ {
			right, move := &e.rows[j], int(g.moves[i*g.b.w+j])
			if j == n {
				right, move = &loss, 0
			}
			// keeping compares what its parts compare, exactly; a row's own first slot may be
			// later.
			r.split(max(r.lo, g.slotAbove(on.keeping(i, j), i, n)), r.hi(), right, move, &g.rows[i*g.b.w+j-1], g.nograd(i, j))
		}
		r.close()
	}
}

// time is that of (i, L, m) in units of the grid's scale.
func (e *spineRows) time(i int, m int64) float32 {
	switch {
	case m < e.on.least[i]:
		return infinite
	case m >= e.on.all[i]:
		return 0
	}
	return e.look(&e.rows[i], i, e.t.n, m)
}

// end is time, or a guess where that is infinite although there are enough bytes.
func (e *spineRows) end(i int, m int64) float64 {
	v := e.time(i, m)
	if v == infinite && m >= e.on.least[i] {
		v = e.rows[i].guess(e.grid.nograd(i, e.t.n))
	}
	return float64(v)
}
