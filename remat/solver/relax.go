package solver

import (
	"context"
	"math"
)

// relaxation bounds Opt(i, l, m) from below by convex functions U of m, for the intervals of a long
// chain that end where [cells] do:
//
//	save i         U(i+1, l, m - Saved(i))                      if  m >= need(i)
//	keep up to j   nograd(i, j) + U(j, l, m - a) + U(k, k'-1, m)
//
// k is the first boundary from i on, and k' the last one up to j. The last term is 0 if there is no
// whole cell between them.
//
// Three simplifications make U lower than Opt. A minimum is replaced by the greatest convex
// function below it; little is lost, because a long chain has many layers that can be computed
// again, each a bit cheaper by the byte than the next. The bytes that forwards without gradients
// and |y(l+1)| take are ignored where l is not the loss. And only the whole cells of an interval
// that is computed again count. That is a bound because U, by induction over the length of the
// interval, does not grow when layers are taken away at either end.
type relaxation struct {
	*cells
	rows [][]convex // of (i, end(e)) at [e][i]
}

// newRelaxation computes all rows: for each end one pass over the layers before it. It returns
// ctx.Err() when ctx ends first.
func newRelaxation(ctx context.Context, c *cells) (*relaxation, error) {
	r := &relaxation{cells: c, rows: make([][]convex, c.ends()+1)}
	for e := 1; e <= c.ends(); e++ {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		w := rowBuilder{relaxation: r, l: c.end(e), whole: e == c.ends()}
		w.fill()
		r.rows[e] = w.rows
	}
	return r, nil
}

// rowBuilder computes the rows that end with l, from l to 0.
type rowBuilder struct {
	*relaxation
	l     int
	whole bool // l is the loss: nothing comes later, so every moment counts
	rows  []convex
	// exits are, by cell, the time from the cell's boundary on, reached without gradients, if the
	// next input that is kept lies in the cell. crossing is the least time from the next boundary
	// on, reached without gradients.
	exits    []convex
	crossing convex
	out, sum convex // spare
}

func (w *rowBuilder) fill() {
	t, l := w.t, w.l
	w.rows, w.exits = make([]convex, l+1), make([]convex, w.cell[l]+1)
	w.rows[l] = convex{{float64(w.need(l)), 0}}
	if w.boundaries[w.cell[l]] == l {
		w.exit(w.cell[l])
	}
	var best convex
	for i := l - 1; i >= 0; i-- {
		if i == l-1 || w.cell[i] != w.cell[i+1] {
			w.cross(w.cell[i] + 1)
		}
		best = w.add(best[:0], w.rows[i+1], t.saved[i], 0, w.need(i))
		next := w.boundaries[w.cell[i]+1]
		for j := i + 1; j <= min(l, next); j++ {
			best = w.add(best, w.rows[j], t.kept(i, j), t.nograd[j]-t.nograd[i], w.sweep(i, j))
		}
		best = w.add(best, w.crossing, 0, t.nograd[next]-t.nograd[i], 0).simple()
		w.rows[i] = append(convex(nil), best...)
		if i == w.boundaries[w.cell[i]] {
			w.exit(w.cell[i])
		}
	}
}

// add is the lower of best and f. f is moved by bytes and time, and does not count below from
// bytes.
func (w *rowBuilder) add(best, f convex, bytes int64, time float64, from int64) convex {
	if len(f) == 0 || time+f[len(f)-1].time >= best.at(f[0].bytes+float64(bytes)) {
		return best
	}
	w.out = best.lower(w.out, f, float64(bytes), time, float64(from))
	best, w.out = w.out, best
	return best
}

// need is the least m for saving layer i in an interval that ends with l.
func (w *rowBuilder) need(i int) int64 {
	if w.whole {
		return w.t.saving(i, w.l)
	}
	return max(w.t.savingEarly(i), w.t.savingLate(i, i))
}

// sweep is the least m for computing x(j) from x(i).
func (w *rowBuilder) sweep(i, j int) int64 {
	if w.whole {
		return w.t.sweeping(i, j, w.l)
	}
	return w.t.sweep[w.t.pair(i, j)]
}

// exit computes the exit of a cell.
func (w *rowBuilder) exit(cell int) {
	t, boundary := w.t, w.boundaries[cell]
	var f convex
	for j := max(boundary, 1); j <= w.l && w.cell[j] == cell; j++ {
		f = w.add(f, w.rows[j], t.chain.Layers[j-1].Output, t.nograd[j]-t.nograd[boundary], 0)
	}
	w.exits[cell] = append(convex(nil), f.simple()...)
}

// cross computes crossing from the boundary of a cell on.
func (w *rowBuilder) cross(cell int) {
	t := w.t
	w.crossing = w.crossing[:0]
	for k := cell; k <= w.cell[w.l]; k++ {
		f := w.exits[k]
		if k > cell {
			w.sum = f.plus(w.sum, w.relaxation.rows[k][w.boundaries[cell]])
			f = w.sum
		}
		w.crossing = w.add(w.crossing, f, 0, t.nograd[w.boundaries[k]]-t.nograd[w.boundaries[cell]], 0)
	}
	w.crossing = w.crossing.simple()
}

// size is the bytes of the rows.
func (r *relaxation) size() (sum int64) {
	for _, rows := range r.rows {
		for _, f := range rows {
			sum += int64(len(f))
		}
	}
	return 16 * sum
}

// bound is a time beyond computing everything once that no plan of the whole chain with m bytes is
// below.
func (r *relaxation) bound(m int64) float64 {
	const rounding = 1e-9 // of sums of thousands of terms
	f := r.rows[r.ends()][0]
	if v := f.at(float64(m) * (1 + rounding)); !math.IsInf(v, 1) {
		return v * (1 - rounding)
	}
	return 0
}

// at estimates the time of (i, l, m). m is not below least. If no known interval ends with l, it is
// the time of the next longer one that is known.
func (r *relaxation) at(i, l int, m int64) float64 {
	if _, all := r.of(i, l); m >= all {
		return 0
	}
	if v := r.rows[r.endFrom(l)][i].at(float64(m)); !math.IsInf(v, 1) {
		return v
	}
	return r.t.nograd[min(l+1, r.t.n)] - r.t.nograd[i]
}
