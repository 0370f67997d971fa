package solver

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
)

// fill computes all rows, short intervals first. The row of (i, l) needs the rows within (i, l); rows of
// one length are independent. It returns ctx.Err() when ctx ends first.
func (g *grid) fill(ctx context.Context) error {
	g.makeRows()
	for length := range g.b.w {
		if err := parallel(ctx, g.b.w-length, func(i int) { g.fillRow(i, i+length) }); err != nil {
			return err
		}
	}
	return nil
}

// parallel calls do for 0 to n-1 on all processors. It returns ctx.Err() when ctx ends first.
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
		r.lowerTo(g.slotAbove(g.t.saving(i, l), i, l), &g.rows[(i+1)*w+l])
	}
	// start is the first slot where the sweeps so far fit, and swept is their bytes. From end on the row
	// costs no more than the last sweep alone. Times do not grow with m, and sweeps do not shrink with
	// j, so no later j can win there.
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

// split lowers the slots from start to end-1 of r to cost, plus right at move slots further, plus left.
func (r *row) split(start, end int, right *row, move int, left *row, cost float32) {
	rightHi, leftHi := right.hi()-move, left.hi()
	// There are up to three pieces: both look-ups are in their rows, one is, or both are in tails.
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

// lowerTo lowers each slot of r, from s on, to the same slot of next if that is less.
func (r *row) lowerTo(s int, next *row) {
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

// close sets the tail of a row that ends at the grid's most bytes to its last slot.
func (r *row) close() {
	if r.tail != 0 && r.n > 0 {
		r.tail = r.v[r.n-1]
	}
}

// minPlusTwo sets out[k] to the least of out[k] and a[k] + b[k] + c. A branch that is hardly ever taken
// is cheaper than min of floats, which must handle NaN and -0.
func minPlusTwo(out, a, b []float32, c float32) {
	a, b = a[:len(out)], b[:len(out)]
	for k, was := range out {
		if sum := a[k] + b[k] + c; sum < was {
			out[k] = sum
		}
	}
}

// minPlusOne sets out[k] to the least of out[k] and a[k] + c.
func minPlusOne(out, a []float32, c float32) {
	a = a[:len(out)]
	for k, was := range out {
		if sum := a[k] + c; sum < was {
			out[k] = sum
		}
	}
}
