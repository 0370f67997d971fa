package solver

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
)

// Rows are computed in tiles of consecutive i and consecutive l, so that a row that has come from
// memory serves all of a tile: (i, l) needs the rows (i, j-1) and (j, l) of all j between, which is
// all that there is in its row and column of the table. The tiles of one diagonal need nothing of
// each other and are shared out among the processors.

// tileCells is how many float32 of results a tile has at most, to stay in a core's own cache (half
// of 1 MiB) with what it reads.
const tileCells = 128 << 10

// maxTile is the most rows and columns of a tile: reading is an eighth of what it would be then,
// and no longer what matters.
const maxTile = 8

// fill computes all rows. It returns ctx.Err() when ctx ends first.
func (g *grid) fill(ctx context.Context) error {
	g.makeRows()
	longest := 1
	for k := range g.rows {
		longest = max(longest, g.rows[k].n)
	}
	side := 2
	for side < maxTile && 4*side*side*longest <= tileCells {
		side *= 2
	}
	blocks := (g.b.w + side - 1) / side
	for d := range blocks {
		var next atomic.Int64
		var wait sync.WaitGroup
		work := func() {
			tile := newTile(g, side)
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i+d >= blocks {
					return
				}
				tile.fill(i*side, (i+d)*side)
			}
		}
		for range min(runtime.GOMAXPROCS(0), blocks-d) - 1 {
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

// tile is the intervals (i, l) with top <= i < bottom and left <= l < right that a worker is
// computing.
type tile struct {
	g                        *grid
	side                     int
	top, bottom, left, right int
	cells                    []cell // of one column after the other
}

// cell is an interval that is being computed.
type cell struct {
	*row
	i, l int
	// start is the first slot where the sweeps so far fit, and swept the bytes that they need.
	start int
	swept int64
	// end is the slot from which on the row costs no more than the sweep to the last j alone. Times
	// do not grow with m, and a sweep's with j: from there on no later j can win.
	end int
}

func newTile(g *grid, side int) *tile {
	return &tile{g: g, side: side, cells: make([]cell, 0, side*side)}
}

// fill computes the tile at (top, left).
func (t *tile) fill(top, left int) {
	t.top, t.bottom, t.left, t.right = top, min(top+t.side, t.g.b.w), left, min(left+t.side, t.g.b.w)
	t.open()
	if top < left {
		// What is between the tile's rows and its columns is final; what lies in the tile is not,
		// so what needs that is done twice. The first time gives times that are possible, if not
		// the best, which tells cells early which sweeps can no longer win.
		for k := range t.cells {
			c := &t.cells[k]
			c.saveFirst(t.g)
			c.extend(t.g, c.i+1, t.bottom-1)
		}
		for j := t.bottom; j <= t.left; j++ {
			for k := range t.cells {
				t.cells[k].extend(t.g, j, j)
			}
		}
	}
	for k := range t.cells {
		c := &t.cells[k]
		c.saveFirst(t.g)
		c.start, c.swept, c.end = c.lo, -1, c.hi()
		c.extend(t.g, c.i+1, min(t.bottom-1, c.l))
		c.extend(t.g, max(t.left, t.bottom-1)+1, c.l)
		c.close()
	}
}

// open lists the tile's cells, each after all that lie within it.
func (t *tile) open() {
	t.cells = t.cells[:0]
	for l := t.left; l < t.right; l++ {
		for i := min(l, t.bottom-1); i >= t.top; i-- {
			r := &t.g.rows[i*t.g.b.w+l]
			if r.n == 0 {
				continue
			}
			r.clear()
			t.cells = append(t.cells, cell{row: r, i: i, l: l, start: r.lo, swept: -1, end: r.hi()})
		}
	}
}

// saveFirst improves the row by what running layer i with gradients first gives.
func (c *cell) saveFirst(g *grid) {
	if c.i == c.l {
		return // least = all: there is no slot between
	}
	c.follow(g.slotAbove(g.t.saving(c.i, c.l), c.i, c.l), &g.rows[(c.i+1)*g.b.w+c.l])
}

// extend improves the row by what keeping x(i) up to each of x(first) .. x(last) gives.
func (c *cell) extend(g *grid, first, last int) {
	for j := first; j <= last && c.start < c.end; j++ {
		if need := g.t.sweeping(c.i, j, c.l); need != c.swept {
			c.start, c.swept = max(c.start, g.slotAbove(need, c.i, c.l)), need
		}
		cost := g.nograd(c.i, j)
		if cost > g.worth {
			return
		}
		for c.end > c.start && c.v[c.end-1-c.lo] <= cost {
			c.end--
		}
		c.keepUpTo(g, j, cost)
	}
}

// keepUpTo improves the slots start .. end-1 by what keeping x(i) up to x(j) gives.
func (c *cell) keepUpTo(g *grid, j int, cost float32) {
	w := g.b.w
	// The slot of (j, l, m - a(i, j)) is that of (i, l, m) and so many.
	c.row.split(c.start, c.end, &g.rows[j*w+c.l], int(g.moves[c.i*w+j]), &g.rows[c.i*w+j-1], cost)
}

// split improves the slots start .. end-1 of r by the sum of cost, of what right has move slots on,
// and of what left has.
func (r *row) split(start, end int, right *row, move int, left *row, cost float32) {
	if right.empty() || left.empty() {
		return
	}
	rightHi, leftHi := right.hi()-move, left.hi()
	// Up to three pieces: with both look-ups in their rows, with one, with both in their tails.
	for s := max(start, left.lo, right.lo-move); s < end; {
		stop := end
		sum := cost
		var one, two []float32
		if s < rightHi {
			stop = min(stop, rightHi)
			one = right.v[s+move-right.lo:]
		} else {
			sum += right.tail
		}
		if s < leftHi {
			stop = min(stop, leftHi)
			two = left.v[s-left.lo:]
		} else {
			sum += left.tail
		}
		out := r.v[s-r.lo : stop-r.lo]
		switch {
		case one != nil && two != nil:
			minPlusTwo(out, one, two, sum)
		case one != nil:
			minPlusOne(out, one, sum)
		case two != nil:
			minPlusOne(out, two, sum)
		default:
			for k, was := range out {
				out[k] = min(was, sum)
			}
		}
		s = stop
	}
}

// follow improves the slots of r from s on by what next has there.
func (r *row) follow(s int, next *row) {
	s = max(s, r.lo, next.lo)
	if within := min(next.hi(), r.hi()); s < within {
		minPlusOne(r.v[s-r.lo:within-r.lo], next.v[s-next.lo:], 0)
		s = within
	}
	for ; s < r.hi(); s++ {
		r.v[s-r.lo] = min(r.v[s-r.lo], next.tail)
	}
}

// clear makes all slots of r infinite.
func (r *row) clear() {
	for k := range r.v {
		r.v[k] = infinite
	}
}

// close gives a row that ends at the greatest number of bytes the tail that its last slot asks for.
func (r *row) close() {
	if r.tail != 0 && r.n > 0 {
		r.tail = r.v[r.n-1]
	}
}
