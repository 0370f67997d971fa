package solver

import (
	"cmp"
	"math"
)

// grid is Opt(i, l, m) for all intervals of layers and bytes m up to most, at every unit bytes. In an
// achievable grid every finite time has a plan. In an optimistic grid no plan is faster than a time.
//
// Sizes are not rounded. The row of (i, l) has the bytes at which
//
//	z = m + (Saved of layers before i) + (WeightGradient of layers after l)
//
// is a multiple of unit away from most. (i+1, l, m - Saved(i)) and (i, j-1, m - G(j, l)) have the z of
// (i, l, m). So only the third look-up, (j, l, m - a(i, j)), falls between two slots. It is rounded:
// down if the grid is achievable, up if it is optimistic. So errors add up once per kept input, and not
// once per layer as with rounded sizes. Feasibility (saving, sweep, least, all) is compared in exact
// bytes.
//
// A row is infinite below least(i, l), and 0 from all(i, l) on. It holds the slots between, up to most.
type grid struct {
	t          *terms
	b          *bounds
	optimistic bool
	most       int64 // greatest m
	unit       int64
	origin     int64 // z of slot 0; most is a slot
	rows       []row
	moves      []int // at i*w+j, see move
	// cost is nograd of the layers before i, in units of scale, which is nograd of all layers. So a
	// float32 holds times of any size.
	cost  []float64
	scale float64 // microseconds
}

// row is the slots lo .. lo+n-1 of an interval. Below them it is infinite, above them tail.
type row struct {
	lo, n int
	tail  float32
	v     []float32
}

func (r *row) hi() int { return r.lo + r.n }

// slotAbove returns the first slot of (i, l) with m bytes or more.
func (g *grid) slotAbove(m int64, i, l int) int { return ceilDiv(m+g.shift(i, l)-g.origin, g.unit) }

// slotBelow returns the last slot of (i, l) with m bytes or fewer.
func (g *grid) slotBelow(m int64, i, l int) int { return floorDiv(m+g.shift(i, l)-g.origin, g.unit) }

// shift is z - m.
func (g *grid) shift(i, l int) int64 { return g.t.savedSum[i] + g.t.gradSum[g.t.n] - g.t.gradSum[l+1] }

func floorDiv(a, b int64) int {
	q := a / b
	if a%b < 0 {
		q--
	}
	return int(q)
}

func ceilDiv(a, b int64) int { return -floorDiv(-a, b) }

// at returns the time of (i, l, m), in units of scale.
func (g *grid) at(i, l int, m int64) float32 {
	least, all := g.b.of(i, l)
	switch {
	case m < least:
		return infinite
	case m >= all:
		return 0
	}
	return g.look(&g.rows[i*g.b.w+l], i, l, m)
}

// look returns the time of m bytes in a row of (i, l).
func (g *grid) look(r *row, i, l int, m int64) float32 {
	s := g.slotBelow(m, i, l)
	if g.optimistic {
		s = g.slotAbove(m, i, l)
	}
	switch {
	case s < r.lo:
		return infinite
	case s >= r.hi():
		return r.tail
	}
	return r.v[s-r.lo]
}

// newGrid computes the sizes of the rows; fill allocates and computes them.
func newGrid(t *terms, b *bounds, most, unit int64, optimistic bool) *grid {
	g := &grid{t: t, b: b, optimistic: optimistic, most: most, unit: unit, origin: most % unit,
		rows: make([]row, b.w*b.w), moves: make([]int, b.w*b.w)}
	g.price()
	for i := range b.w {
		for l := i; l < b.w; l++ {
			r := &g.rows[i*b.w+l]
			least, all := b.of(i, l)
			r.lo, r.n, r.tail = g.band(i, l, least, all)
			if i < l {
				g.moves[i*b.w+l] = g.move(i, l)
			}
		}
	}
	return g
}

// bytes returns the m of a slot of (i, l).
func (g *grid) bytes(slot, i, l int) int64 { return g.origin + int64(slot)*g.unit - g.shift(i, l) }

// size returns the bytes of the rows' slots.
func (g *grid) size() int64 {
	cells := int64(0)
	for k := range g.rows {
		cells += int64(g.rows[k].n)
	}
	return 4 * cells
}

// makeRows allocates all rows at once.
func (g *grid) makeRows() {
	cells := make([]float32, g.size()/4)
	for k := range g.rows {
		r := &g.rows[k]
		r.v, cells = cells[:r.n:r.n], cells[r.n:]
	}
}

// band returns the slots of (i, l) from least to all or g.most, whichever is first: the first slot,
// their number, and the time after them: 0 from all on, otherwise infinite until close sets it.
func (g *grid) band(i, l int, least, all int64) (lo, n int, tail float32) {
	lo, hi := g.slotAbove(least, i, l), g.slotAbove(all, i, l)
	last := g.slotBelow(g.most, i, l)
	if g.optimistic {
		last = g.slotAbove(g.most, i, l)
	}
	if hi <= last+1 {
		return lo, hi - lo, 0
	}
	return lo, max(last+1-lo, 0), infinite
}

// move returns the number of slots from (i, l, m) to (j, l, m - a(i, j)).
func (g *grid) move(i, j int) int {
	up := g.t.savedSum[j] - g.t.savedSum[i] - g.t.kept(i, j)
	if !g.optimistic {
		return floorDiv(up, g.unit)
	}
	return ceilDiv(up, g.unit)
}

// price fills cost. In an achievable grid, which guides plans, a layer without time costs a ten-millionth
// of all layers, so that it is not recomputed for nothing.
func (g *grid) price() {
	n := g.t.n
	g.cost = make([]float64, n+1)
	g.scale = g.t.nograd[n]
	total := cmp.Or(g.scale, 1)
	least := 0.0
	if !g.optimistic {
		least = 1e-7 / float64(n)
	}
	for i := range n {
		g.cost[i+1] = g.cost[i] + max((g.t.nograd[i+1]-g.t.nograd[i])/total, least)
	}
}

// unitFor returns the unit that divides bytes into a number of slots. It is a multiple of the grain, so
// that more sizes fall on slots.
func (t *terms) unitFor(bytes int64, slots int) int64 {
	return t.multiple(int64(ceilDiv(bytes, int64(slots))))
}

// multiple rounds a unit up to a multiple of the grain.
func (t *terms) multiple(unit int64) int64 { return max(int64(ceilDiv(unit, t.grain)), 1) * t.grain }

func (g *grid) microseconds(v float32) float64 {
	if v == infinite {
		return math.Inf(1)
	}
	return float64(v) * g.scale
}

// nograd returns the time of layers i..j-1 without gradients, in units of scale.
func (g *grid) nograd(i, j int) float32 { return float32(g.cost[j] - g.cost[i]) }

// slack is the relative error of a time in rows from rounding in float32: half a unit in the last place
// for each of at most two additions per layer, and for cost.
func (g *grid) slack() float64 { return float64(2*g.t.n+4) * math.Pow(2, -24) }
