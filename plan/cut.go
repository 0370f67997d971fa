package plan

import "math"

// cutter finds the best cut of a problem, in whole numbers.
//
// Partition fills stages greedily and relies on the quadrangle inequality. Neither holds where
// boundaries cost something: a longer stage may be cheaper, and the best last cut may move back as
// layers are added. But a stage costs at least the sum of its layers. So a bound of the bottleneck
// limits the length of every stage, and how many stages the layers after a boundary take, from
// below and from above.
//
// Within these limits dynamic programming over the first layer and the number of stages tries every
// stage, from the last layer back. The first pass finds the least bottleneck. The second takes it
// as the bound and finds the least sum of squares.
type cutter struct {
	layers, n int
	terms     []intTerms
	of        []int // by stage, as in problem
	skips     []route
	stashes   [][]int  // by layer: the skips that begin there
	pops      [][]pop  // by layer: the skips that it pops
	sums      []uint64 // prefix sums of the layers' least costs
	bound     uint64
	rows      []cutRow // by first layer, and one after the last
}

// pop says that a layer is the k-th that pops a skip.
type pop struct{ skip, k int }

// cutRow is the part of the table for a first layer: for every number k of stages, from low to high,
// that the layers from there on may be cut into.
type cutRow struct {
	low, high int
	least     []uint64  // by k-low: the least bottleneck, or unreachable
	best      []uint128 // by k-low: the least sum of squares
	next      []int     // by k-low: where the first stage of the best cut ends; 0 if there is no cut
}

// unreachable is above every bottleneck.
const unreachable = math.MaxUint64

// cut returns the best n counts.
func (c *cutter) cut(n int) []int {
	c.n, c.sums = n, make([]uint64, c.layers+1)
	low := uint64(0) // a lower bound of the bottleneck
	for i := range c.layers {
		cost := uint64(math.MaxUint64)
		for _, p := range c.terms {
			cost = min(cost, p.layer[i])
		}
		c.sums[i+1] = c.sums[i] + cost
		low = max(low, cost)
	}
	low = max(low, divideUp(c.sums[c.layers], uint64(n)))
	high, start := uint64(0), 0 // an upper bound
	for stage, count := range evenest(c.sums, n, leastBottleneck(c.sums, n)) {
		high = max(high, c.cost(stage, start, start+count))
		start += count
	}
	// A bound slightly too low costs less time than one far too high.
	for slack := max(low/8, high/64); ; slack *= 2 {
		c.bound = min(low+slack, high)
		if bottleneck := c.leastBottleneck(); bottleneck <= c.bound {
			c.bound = bottleneck
			return c.evenest()
		}
	}
}

// cost returns the cost of a stage from layer start up to but not including end.
func (c *cutter) cost(stage, start, end int) uint64 {
	p, t := &c.terms[c.termsOf(stage)], tally{}
	for last := start; last < end; last++ {
		c.grow(&t, p, start, last)
	}
	return t.inside + t.leaving + p.leave[end-1]
}

// termsOf returns the index of a stage's terms.
func (c *cutter) termsOf(stage int) int {
	if c.of == nil {
		return 0
	}
	return c.of[stage]
}

// tally adds up the cost of a stage, under some terms, while it grows.
type tally struct {
	inside  uint64 // its layers, and what enters; it never falls as the stage grows
	leaving uint64 // skips that it begins and later stages pop
}

// grow adds the layer last to a stage that begins at start.
func (c *cutter) grow(t *tally, p *intTerms, start, last int) {
	if t.inside += p.layer[last]; last == start {
		t.inside += p.enter[start]
	}
	for _, at := range c.pops[last] {
		l := &c.skips[at.skip]
		switch {
		case l.from >= start && at.k == len(l.to)-1:
			t.leaving -= p.out[at.skip]
		case l.from < start && (at.k == 0 || l.to[at.k-1] < start):
			t.inside += p.in[at.skip]
		}
	}
	for _, s := range c.stashes[last] {
		t.leaving += p.out[s]
	}
}

// reach returns the range of the number of stages that the layers after a boundary may be cut
// into, if all stages, before it too, cost at most bound. It is empty, with low > high, if no cut
// does.
func (c *cutter) reach(boundary int) (low, high int) {
	before, after := c.sums[boundary], c.sums[c.layers]-c.sums[boundary]
	low = max(c.n-boundary, min(1, c.layers-boundary), stagesFor(after, c.bound, c.n))
	high = min(c.layers-boundary, c.n-stagesFor(before, c.bound, c.n))
	return low, high
}

// stagesFor returns the least number of stages of at most bound that hold a sum of costs; more than
// n if n do not.
func stagesFor(sum, bound uint64, n int) int {
	switch {
	case sum == 0:
		return 0
	case bound == 0:
		return n + 1
	}
	return int(min(divideUp(sum, bound), uint64(n)+1))
}

// divideUp returns a/b, rounded up.
func divideUp(a, b uint64) uint64 {
	q := a / b
	if q*b < a {
		q++
	}
	return q
}

// eachStage calls visit for every stage, from one boundary to another, that costs at most bound
// under some terms and can be the first of k stages, low <= k <= high, that all do. Stages come by
// first layer descending, then by end ascending. fill gets the row of each boundary, with its range,
// before its first stage is visited. costs are by terms.
func (c *cutter) eachStage(fill func(r *cutRow),
	visit func(from, to *cutRow, end, low, high int, costs []uint64)) {
	c.rows = make([]cutRow, c.layers+1)
	tallies, costs := make([]tally, len(c.terms)), make([]uint64, len(c.terms))
	for start := c.layers; start >= 0; start-- {
		from := &c.rows[start]
		if from.low, from.high = c.reach(start); from.low > from.high {
			continue // and no stage ends here
		}
		fill(from)
		clear(tallies)
		for end := start + 1; end <= c.layers; end++ {
			inside, least := uint64(math.MaxUint64), uint64(math.MaxUint64)
			for i := range tallies {
				p, t := &c.terms[i], &tallies[i]
				c.grow(t, p, start, end-1)
				costs[i] = t.inside + t.leaving + p.leave[end-1]
				inside, least = min(inside, t.inside), min(least, costs[i])
			}
			if inside > c.bound { // a longer stage may cross less, and has no less inside
				break
			}
			to := &c.rows[end]
			low, high := max(from.low, to.low+1), min(from.high, to.high+1)
			if least <= c.bound && low <= high {
				visit(from, to, end, low, high, costs)
			}
		}
	}
}

// leastBottleneck returns the least bottleneck of n stages, if it is at most bound, and more than
// bound otherwise.
func (c *cutter) leastBottleneck() uint64 {
	c.eachStage(func(r *cutRow) {
		r.least = make([]uint64, r.high-r.low+1)
		for k := range r.least {
			r.least[k] = unreachable
		}
		if r == &c.rows[c.layers] {
			r.least[0] = 0
		}
	}, func(from, to *cutRow, _, low, high int, costs []uint64) {
		for k := low; k <= high; k++ {
			least := &from.least[k-from.low]
			*least = min(*least, max(costs[c.termsOf(c.n-k)], to.least[k-1-to.low]))
		}
	})
	if r := &c.rows[0]; r.low <= r.high {
		return r.least[0]
	}
	return unreachable
}

// evenest returns the counts of n stages of cost at most bound, which exist, with the least sum of
// squares, and among equals the lexicographically greatest.
func (c *cutter) evenest() []int {
	c.eachStage(func(r *cutRow) {
		r.best, r.next = make([]uint128, r.high-r.low+1), make([]int, r.high-r.low+1)
	}, func(from, to *cutRow, end, low, high int, costs []uint64) {
		for k := low; k <= high; k++ {
			cost := costs[c.termsOf(c.n-k)]
			if cost > c.bound || end < c.layers && to.next[k-1-to.low] == 0 {
				continue
			}
			sum := square(cost).plus(to.best[k-1-to.low])
			best, next := &from.best[k-from.low], &from.next[k-from.low]
			if *next == 0 || !best.less(sum) { // ends ascend
				*best, *next = sum, end
			}
		}
	})
	counts := make([]int, 0, c.n)
	for at, k := 0, c.n; k > 0; k-- {
		end := c.rows[at].next[k-c.rows[at].low]
		counts, at = append(counts, end-at), end
	}
	return counts
}
