package plan

import (
	"context"
	"math"
	"runtime"
	"sort"
	"sync"
	"sync/atomic"
)

// rounding says on which side of the optimum a grid's times lie.
type rounding int

const (
	achievable rounding = iota // never below it: there is a plan for every finite time
	optimistic                 // never above it: no plan is faster
)

// grid is Opt(i, l, m) for all intervals of layers and bytes m up to most, at every unit bytes.
//
// Sizes are not rounded. The row of (i, l) has the bytes at which
//
//	z = m + (Saved of layers before i) + (WeightGradient of layers after l)
//
// is a multiple of unit away from most. In z, a forward with gradients and the return to x(i) do not move: (i+1, l, m - Saved(i)) and (i, j-1, m - G(j, l)) have the z of (i, l, m). So only the third
// look-up, (j, l, m - a(i, j)), falls between two slots, and that one is rounded: down if the grid is achievable, up if it is optimistic. Errors add up once per kept input on the way, and not once
// per layer as they do where sizes are rounded. What decides on feasibility (saving, sweep, least, all) is compared in bytes, exactly.
//
// A row holds only the slots between least(i, l), below which it is infinite, and all(i, l), from which it is 0, or most.
type grid struct {
	t        *terms
	b        *bounds
	rounding rounding
	most     int64 // greatest m
	unit     int64
	origin   int64 // z of slot 0; most is a slot
	rows     []row
	cells    []float32 // of all rows
	moves    []int32   // at i*w+j, see move
	cost     []float64 // nograd of the layers before i, in units of scale: all layers' together, so that float32 holds them whatever they are
	scale    float64   // microseconds
}

// row is the slots lo .. lo+len(v)-1 of an interval. From there on it is tail, below lo infinite.
type row struct {
	lo   int
	tail float32
	v    []float32
}

func (r *row) hi() int { return r.lo + len(r.v) }

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
	r := &g.rows[i*g.b.w+l]
	s := 0
	if g.rounding == achievable {
		s = g.slotBelow(m, i, l)
	} else {
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

// newGrid lays out the rows; fill computes them.
func newGrid(t *terms, b *bounds, most, unit int64, side rounding) *grid {
	g := &grid{t: t, b: b, rounding: side, most: most, unit: unit, origin: most % unit, rows: make([]row, b.w*b.w), moves: make([]int32, b.w*b.w)}
	g.price()
	for i := range b.w {
		for j := i + 1; j < b.w; j++ {
			g.moves[i*b.w+j] = int32(g.move(i, j))
		}
	}
	total := 0
	for i := range b.w {
		for l := i; l < b.w; l++ {
			lo, n, _ := g.band(i, l)
			g.rows[i*b.w+l].lo = lo
			total += n
		}
	}
	g.cells = make([]float32, total)
	rest := g.cells
	for i := range b.w {
		for l := i; l < b.w; l++ {
			_, n, tail := g.band(i, l)
			r := &g.rows[i*b.w+l]
			r.v, r.tail, rest = rest[:n:n], tail, rest[n:]
		}
	}
	return g
}

// band is the first of the slots of (i, l), their number, and what follows them: 0 where they end at all(i, l); infinite, until they are computed, where they end at most.
func (g *grid) band(i, l int) (lo, n int, tail float32) {
	least, all := g.b.of(i, l)
	lo, hi := g.slotAbove(least, i, l), g.slotAbove(all, i, l)
	last := g.slotBelow(g.most, i, l)
	if g.rounding == optimistic {
		last = g.slotAbove(g.most, i, l)
	}
	if hi <= last+1 {
		return lo, hi - lo, 0
	}
	return lo, max(last+1-lo, 0), infinite
}

// move is by how many slots z grows from (i, l, m) to (j, l, m - a(i, j)).
func (g *grid) move(i, j int) int {
	up := g.t.savedSum[j] - g.t.savedSum[i] - g.t.kept(i, j)
	if g.rounding == achievable {
		return floorDiv(up, g.unit)
	}
	return ceilDiv(up, g.unit)
}

// price fills cost.
func (g *grid) price() {
	n := g.t.n
	g.cost = make([]float64, n+1)
	g.scale = g.t.nograd[n]
	if g.scale == 0 {
		g.scale = 1
	}
	for i := range g.cost {
		g.cost[i] = g.t.nograd[i] / g.scale
	}
}

// nograd is the time of i..j-1 without gradients, in units of scale.
func (g *grid) nograd(i, j int) float32 { return float32(g.cost[j] - g.cost[i]) }

// fill computes all rows, those of equally many layers in parallel. It returns ctx.Err() when ctx ends first.
func (g *grid) fill(ctx context.Context) error {
	workers := runtime.GOMAXPROCS(0)
	for d := range g.b.w {
		var next atomic.Int64
		var wait sync.WaitGroup
		work := func() {
			for {
				i := int(next.Add(1)) - 1
				if i+d >= g.b.w {
					return
				}
				g.row(i, i+d)
			}
		}
		for range min(workers, (g.b.w-d)*d/16) - 1 {
			wait.Go(work)
		}
		work()
		wait.Wait()
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// row computes (i, l).
func (g *grid) row(i, l int) {
	r := &g.rows[i*g.b.w+l]
	if len(r.v) == 0 {
		return
	}
	for k := range r.v {
		r.v[k] = infinite
	}
	g.saveFirst(r, i, l)
	start, swept := r.lo, int64(-1)
	for j := i + 1; j <= l; j++ {
		if need := g.t.sweeping(i, j, l); need != swept {
			start, swept = max(start, g.slotAbove(need, i, l)), need
			if start >= r.hi() {
				break
			}
		}
		g.keepUpTo(r, start, i, j, l)
	}
	if r.tail != 0 {
		r.tail = r.v[len(r.v)-1]
	}
}

// saveFirst puts into r what the forward with gradients of layer i first gives.
func (g *grid) saveFirst(r *row, i, l int) {
	next := &g.rows[(i+1)*g.b.w+l]
	for s := max(r.lo, next.lo, g.slotAbove(g.t.saving(i, l), i, l)); s < r.hi(); s++ {
		if s >= next.hi() {
			r.v[s-r.lo] = next.tail
		} else {
			r.v[s-r.lo] = next.v[s-next.lo]
		}
	}
}

// keepUpTo improves r, from slot start on, by what keeping x(i) up to x(j) gives.
func (g *grid) keepUpTo(r *row, start, i, j, l int) {
	w := g.b.w
	right, left := &g.rows[j*w+l], &g.rows[i*w+j-1]
	move := int(g.moves[i*w+j])
	cost := g.nograd(i, j)
	start = max(start, left.lo, right.lo-move)
	if start >= r.hi() {
		return
	}
	// Times do not grow with m: from the first slot that is no dearer than cost alone there is nothing to win.
	end := r.lo + sort.Search(len(r.v), func(k int) bool { return r.v[k] <= cost })
	rightHi, leftHi := right.hi()-move, left.hi()
	// Up to four stretches, by whether either look-up is in its row or in its tail.
	for s := start; s < end; {
		stop := end
		a, b := right.tail, left.tail
		var av, bv []float32
		if s < rightHi {
			stop = min(stop, rightHi)
			av = right.v[s+move-right.lo:]
		}
		if s < leftHi {
			stop = min(stop, leftHi)
			bv = left.v[s-left.lo:]
		}
		out := r.v[s-r.lo : stop-r.lo]
		switch {
		case av != nil && bv != nil:
			minPlusTwo(out, av[:len(out)], bv[:len(out)], cost)
		case av != nil:
			minPlusOne(out, av[:len(out)], cost+b)
		case bv != nil:
			minPlusOne(out, bv[:len(out)], cost+a)
		default:
			for k, c := range out {
				out[k] = min(c, cost+a+b)
			}
		}
		s = stop
	}
}

// slack is the factor by which rounding in float32 may have made a time in rows too large or too small: half a unit in the last place for each of the at most two additions per layer on the way down, and for cost.
func (g *grid) slack() float64 { return float64(2*g.t.n+4) * math.Pow(2, -24) }
