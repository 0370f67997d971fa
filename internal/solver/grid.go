package solver

import (
	"cmp"
	"math"
)

// grid is Opt(i, l, m) for all intervals of layers and bytes m up to most, at every unit bytes. The
// times of an achievable grid are never below the optimum: every finite time has a plan. The times of an
// optimistic grid are never above it: no plan is faster.
//
// Sizes are not rounded. The row of (i, l) has the bytes at which
//
//	z = m + (Saved of layers before i) + (WeightGradient of layers after l)
//
// is a multiple of unit away from most. In z, a forward with gradients and the return to x(i) do
// not move: (i+1, l, m - Saved(i)) and (i, j-1, m - G(j, l)) have the z of (i, l, m). So only the
// third look-up, (j, l, m - a(i, j)), falls between two slots, and that one is rounded: down if the
// grid is achievable, up if it is optimistic. Errors add up once per kept input on the way, and not
// once per layer as they do where sizes are rounded. What decides on feasibility (saving, sweep,
// least, all) is compared in bytes, exactly.
//
// A row holds only the slots between least(i, l), below which it is infinite, and all(i, l), from
// which it is 0, or most.
type grid struct {
	t          *terms
	b          *bounds
	optimistic bool
	most       int64 // greatest m
	unit       int64
	origin     int64 // z of slot 0; most is a slot
	rows       []row
	moves      []int // at i*w+j, see move
	// cost is nograd of the layers before i, in units of scale: all layers' together, so that float32
	// holds them whatever they are.
	cost  []float64
	scale float64 // microseconds
}

// row is the slots lo .. lo+n-1 of an interval. From there on it is tail, below lo infinite.
type row struct {
	lo, n int
	tail  float32
	v     []float32
}

func (r *row) hi() int { return r.lo + r.n }

// slotAbove is the first slot of (i, l) with m bytes or more.
func (g *grid) slotAbove(m int64, i, l int) int { return ceilDiv(m+g.shift(i, l)-g.origin, g.unit) }

// slotBelow is the last slot of (i, l) with m bytes or fewer.
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

// at is the time for (i, l, m), in units of scale.
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

// look is the time in a row of (i, l) for m bytes.
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

// bytes is the m of a slot of (i, l).
func (g *grid) bytes(slot, i, l int) int64 { return g.origin + int64(slot)*g.unit - g.shift(i, l) }

// size is the bytes of the rows when they are made.
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

// band is the first of the slots of (i, l) between least and all, their number, and what follows
// them: 0 where they end at all; infinite, until they are computed, where they end at most.
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

// move is the number of slots by which z grows from (i, l, m) to (j, l, m - a(i, j)).
func (g *grid) move(i, j int) int {
	up := g.t.savedSum[j] - g.t.savedSum[i] - g.t.kept(i, j)
	if !g.optimistic {
		return floorDiv(up, g.unit)
	}
	return ceilDiv(up, g.unit)
}

// price fills cost. In an achievable grid, which guides plans, a layer that takes no time costs a
// ten-millionth of all layers, so that it is not computed again for nothing.
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

// unitFor is a unit that divides bytes into a number of slots. It is a multiple of the grain, so
// that more sizes fall on slots.
func (t *terms) unitFor(bytes int64, slots int) int64 {
	return t.multiple(int64(ceilDiv(bytes, int64(slots))))
}

// multiple is the first multiple of the grain from unit on, 1 at least.
func (t *terms) multiple(unit int64) int64 { return max(int64(ceilDiv(unit, t.grain)), 1) * t.grain }

// microseconds converts a time of a row.
func (g *grid) microseconds(v float32) float64 {
	if v == infinite {
		return math.Inf(1)
	}
	return float64(v) * g.scale
}

// nograd is the time of i..j-1 without gradients, in units of scale.
func (g *grid) nograd(i, j int) float32 { return float32(g.cost[j] - g.cost[i]) }

// slack is the factor by which rounding in float32 may have made a time in rows too large or too
// small: half a unit in the last place for each of the at most two additions per layer on the way
// down, and for cost.
func (g *grid) slack() float64 { return float64(2*g.t.n+4) * math.Pow(2, -24) }
