package solver

import (
	"math"
	"sort"
)

// front is a price as a step function of bytes: infinite below its first breakpoint, then constant from
// one breakpoint to the next. Bytes ascend, prices descend.
type front []breakpoint

// breakpoint is the fewest bytes for a price.
type breakpoint struct{ bytes, price int64 }

// free is the front of no bytes and no time.
var free = front{{bytes: math.MinInt64 / 4}}

// upTo returns the number of breakpoints up to a number of bytes.
func (f front) upTo(bytes int64) int {
	return sort.Search(len(f), func(k int) bool { return f[k].bytes > bytes })
}

// envelope is the minimum of the fronts that were added to it.
type envelope struct {
	best, spare front
	visits      int64 // breakpoints looked at, in all
}

// clear makes the minimum infinite.
func (e *envelope) clear() { e.best = e.best[:0] }

// add lowers the minimum to a sum wherever that is less, from a number of bytes on. The sum is price,
// plus right moved by moveRight to more bytes, plus left moved by moveLeft. One pass over the
// breakpoints of the old minimum, of right and of left gives the new minimum.
func (e *envelope) add(right front, moveRight int64, left front, moveLeft int64, price, from int64) {
	if len(right) == 0 || len(left) == 0 {
		return
	}
	from = max(from, right[0].bytes+moveRight, left[0].bytes+moveLeft)
	old := e.best
	k, r, l := old.upTo(from), right.upTo(from-moveRight), left.upTo(from-moveLeft)
	was := int64(math.MaxInt64) // old's price at the current bytes
	if k > 0 {
		was = old[k-1].price
	}
	if was <= price {
		return // no sum is less than price
	}
	out := append(e.spare[:0], old[:k]...)
	e.visits++
	for at := from; ; e.visits++ {
		if now := price + right[r-1].price + left[l-1].price; now < was {
			out = out.lowered(at, now)
		} else if was < math.MaxInt64 {
			out = out.lowered(at, was)
		}
		if was <= price {
			out = append(out, old[k:]...)
			break
		}
		at = math.MaxInt64
		if k < len(old) {
			at = old[k].bytes
		}
		if r < len(right) {
			at = min(at, right[r].bytes+moveRight)
		}
		if l < len(left) {
			at = min(at, left[l].bytes+moveLeft)
		}
		if at == math.MaxInt64 {
			break
		}
		if k < len(old) && old[k].bytes == at {
			was = old[k].price
			k++
		}
		if r < len(right) && right[r].bytes+moveRight == at {
			r++
		}
		if l < len(left) && left[l].bytes+moveLeft == at {
			l++
		}
	}
	e.best, e.spare = out, old
}

// lowered returns f with a lower price from bytes on, which are not below its last breakpoint.
func (f front) lowered(bytes, price int64) front {
	n := len(f)
	switch {
	case n > 0 && f[n-1].price <= price:
		return f
	case n > 0 && f[n-1].bytes == bytes:
		f[n-1].price = price
		return f
	}
	return append(f, breakpoint{bytes, price})
}
