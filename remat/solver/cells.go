package solver

import (
	"context"
	"math/bits"
)

// cells divide a long chain at boundaries, which are inputs of few bytes at about even distances.
// As the next input to keep, all those of the same and the next cell are considered, and of those
// beyond only boundaries. So the least bytes are known for fewer intervals than there are: for
// those of up to span layers, and for those that end before a boundary or with the loss.
type cells struct {
	t          *terms
	boundaries []int // the first layers of the cells, 0 first; then n, the loss, a cell by itself
	cell       []int // of each layer
	span       int
	near       []int64   // least of (i, i+k) at i*span+k, k < span
	far        [][]int64 // least of (i, end(e)) at [e][i]
	every      savings
}

// cellsOfChain is how many cells a chain has. With twice as many, chains of 1,000 layers take three
// times as long for plans that are a ten-thousandth faster.
const cellsOfChain = 50

func newCells(ctx context.Context, t *terms, count int) (*cells, error) {
	c := &cells{t: t, every: newSavings(t), boundaries: []int{0}, cell: make([]int, t.n+1)}
	size := float64(t.n) / float64(count)
	for k := 1.0; k < float64(count); k++ {
		first := max(int(size*(k-0.25)), c.boundaries[len(c.boundaries)-1]+1)
		best := first
		for j := first; j <= int(size*(k+0.25)); j++ {
			if t.chain.Layers[j-1].Output < t.chain.Layers[best-1].Output {
				best = j
			}
		}
		if best < t.n {
			c.boundaries = append(c.boundaries, best)
		}
	}
	c.boundaries = append(c.boundaries, t.n)
	largest := 1
	for k, boundary := range c.boundaries[1:] {
		for i := c.boundaries[k]; i < boundary; i++ {
			c.cell[i] = k
		}
		largest = max(largest, boundary-c.boundaries[k])
	}
	c.cell[t.n] = len(c.boundaries) - 1
	c.span = 2 * largest
	return c, c.fill(ctx)
}

// ends is the number of last layers that long intervals can have: the one before each boundary but
// 0, and the loss. They are numbered from 1 on.
func (c *cells) ends() int { return len(c.boundaries) }

// end is the last layer with a number.
func (c *cells) end(e int) int {
	if e == len(c.boundaries) {
		return c.t.n
	}
	return c.boundaries[e] - 1
}

// endFrom is the number of the first such layer that is not before l.
func (c *cells) endFrom(l int) int { return c.cell[l] + 1 }

// reach is the last of the inputs that are all considered as the next to keep after x(i).
func (c *cells) reach(i int) int {
	if next := c.cell[i] + 2; next < len(c.boundaries) {
		return c.boundaries[next]
	}
	return c.t.n
}

// fill computes near and far. These are the least bytes of plans that keep only inputs that are
// considered, so they may be above the least of all plans.
func (c *cells) fill(ctx context.Context) error {
	c.near = make([]int64, (c.t.n+1)*c.span)
	for l := range c.t.n + 1 {
		for i := l; i >= max(0, l-c.span+1); i-- {
			c.near[i*c.span+l-i] = c.solve(i, l)
		}
	}
	c.far = make([][]int64, c.ends()+1)
	for e := 1; e <= c.ends(); e++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		l := c.end(e)
		c.far[e] = make([]int64, l+1)
		for i := l; i >= 0; i-- {
			if l-i < c.span {
				c.far[e][i] = c.near[i*c.span+l-i]
			} else {
				c.far[e][i] = c.solve(i, l)
			}
		}
	}
	return nil
}

// solve is the least of (i, l), by the recurrence of [newBounds].
func (c *cells) solve(i, l int) int64 {
	t := c.t
	least := t.saving(i, l)
	if i == l {
		return least
	}
	least = max(least, t.saved[i]+c.least(i+1, l))
	for j := i + 1; j <= l; j = c.after(i, j) {
		sweep := t.sweeping(i, j, l)
		if sweep >= least {
			break
		}
		least = min(least, max(sweep, t.kept(i, j)+c.least(j, l), t.weights(j, l)+c.least(i, j-1)))
	}
	return least
}

// after is the next j that is considered after this one.
func (c *cells) after(i, j int) int {
	if j < c.reach(i) || j == c.t.n {
		return j + 1
	}
	return c.boundaries[c.cell[j]+1]
}

// least is the bytes m from which on (i, l) has a plan.
func (c *cells) least(i, l int) int64 {
	if l-i < c.span {
		return c.near[i*c.span+l-i]
	}
	e := c.endFrom(l)
	return c.far[e][i]
}

// of is least, and the bytes from which on nothing is computed again, exactly.
func (c *cells) of(i, l int) (least, all int64) {
	return c.least(i, l), c.every.of(i, l)
}

// maxima answer for the greatest number between any two places of a list. At [k][i] they have the
// greatest of the 2^k numbers from place i on.
type maxima [][]int64

func newMaxima(list []int64) maxima {
	m := maxima{list}
	for size := 1; 2*size <= len(list); size *= 2 {
		half := m[len(m)-1]
		next := make([]int64, len(list)-2*size+1)
		for i := range next {
			next[i] = max(half[i], half[i+size])
		}
		m = append(m, next)
	}
	return m
}

// of is the greatest from first to last.
func (m maxima) of(first, last int) int64 {
	k := bits.Len(uint(last-first+1)) - 1
	return max(m[k][first], m[k][last+1-1<<k])
}
