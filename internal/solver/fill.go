package solver

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
)

// fill computes all rows, of short intervals first: the row of (i, l) needs the rows within it, and rows
// of one length are independent. It returns ctx.Err() when ctx ends first.
func (g *grid) fill(ctx context.Context) error {
	g.makeRows()
	for length := range g.b.w {
		if err := parallel(ctx, g.b.w-length, func(i int) { g.fillRow(i, i+length) }); err != nil {
			return err
		}
	}
	return nil
}

// parallel calls do for 0 to n-1, by all processors. It returns ctx.Err() when ctx ends first.
func parallel(ctx context.Context, n int, do func(k int)) error {
	var next atomic.Int64
	var wait sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), n) {
		wait.Go(func() {
			for k := int(next.Add(1)) - 1; k < n && ctx.Err() == nil; k = int(next.Add(1)) - 1 {
				do(k)
			}
		})
	}
	wait.Wait()
	return ctx.Err()
}

// fillRow computes the row of (i, l).
func (g *grid) fillRow(i, l int) {
	w := g.b.w
	r := &g.rows[i*w+l]
	if r.n == 0 {
		return
	}
	r.clear()
	if i < l { // otherwise least = all: there is no slot between
		r.follow(g.slotAbove(g.t.saving(i, l), i, l), &g.rows[(i+1)*w+l])
	}
	// start is the first slot where the sweeps so far fit, and swept the bytes that they need. From
	// end on the row costs no more than the sweep to the last j alone. Times do not grow with m, and a
	// sweep's with j: from there on no later j can win.
	start, end, swept := r.lo, r.hi(), int64(-1)
	for j := i + 1; j <= l && start < end; j++ {
		if need := g.t.sweeping(i, j, l); need != swept {
			start, swept = max(start, g.slotAbove(need, i, l)), need
		}
		cost := g.nograd(i, j)
		for end > start && r.v[end-1-r.lo] <= cost {
			end--
		}
		// moves counts the slots between (i, l, m) and (j, l, m - a(i, j)).
		r.split(start, end, &g.rows[j*w+l], int(g.moves[i*w+j]), &g.rows[i*w+j-1], cost)
	}
	r.close()
}

// split improves the slots start .. end-1 of r: cost, right move slots further, and left are added.
func (r *row) split(start, end int, right *row, move int, left *row, cost float32) {
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

// follow improves the slots of r from s on by the slots of next.
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

// close sets the tail of a row that ends at the greatest number of bytes to its last slot.
func (r *row) close() {
	if r.tail != 0 && r.n > 0 {
		r.tail = r.v[r.n-1]
	}
}

// minPlusTwo sets out[k] to the least of out[k] and a[k] + b[k] + c. a and b are as long as out, or
// longer. A branch that is hardly ever taken is cheaper than min of floats, which has NaN and -0 to
// see to.
func minPlusTwo(out, a, b []float32, c float32) {
	a, b = a[:len(out)], b[:len(out)]
	for k, was := range out {
		if sum := a[k] + b[k] + c; sum < was {
			out[k] = sum
		}
	}
}

// minPlusOne sets out[k] to the least of out[k] and a[k] + c. a is as long as out, or longer.
func minPlusOne(out, a []float32, c float32) {
	a = a[:len(out)]
	for k, was := range out {
		if sum := a[k] + c; sum < was {
			out[k] = sum
		}
	}
}
