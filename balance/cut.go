package balance

import (
	"math"
	"slices"
)

// cut returns the best n counts.
//
// Partition fills stages greedily and relies on the quadrangle inequality. Neither holds when
// borders cost something: a longer stage may be cheaper, and the best last cut may move back as
// layers are added. But a stage still costs at least the sum of its layers. So a bound on the
// bottleneck limits the length of every stage, and how many stages the layers after a border take,
// from below and from above.
//
// Within these limits dynamic programming tries every stage, from the last layer back. The first
// pass finds the least bottleneck. The second takes that as the bound and finds the least sum of
// squares.
func (c *chain) cut(n int) []int {
	sums := make([]uint64, c.layers+1)
	low := uint64(0) // a lower bound on the bottleneck
	for i := range c.layers {
		cost := uint64(math.MaxUint64)
		for _, p := range c.terms {
			cost = min(cost, p.layer[i])
		}
		sums[i+1] = sums[i] + cost
		low = max(low, cost)
	}
	low = max(low, divideUp(sums[c.layers], uint64(n)))
	high := c.bottleneck(evenest(sums, n, leastBottleneck(sums, n))) // an upper bound

	// A bound that is too low costs less time than one that is much too high.
	for slack := max(low/8, high/64); ; slack *= 2 {
		g := &graph{chain: c, sums: sums, n: n, bound: min(low+slack, high)}
		if bottleneck, ok := g.leastBottleneck(); ok {
			g.bound = bottleneck
			return g.evenest()
		}
	}
}

// bottleneck returns the cost of the costliest stage under a balance.
func (c *chain) bottleneck(counts []int) uint64 {
	bottleneck := uint64(0)
	g := graph{chain: c, n: len(counts), bound: math.MaxUint64}
	g.nodes = make([][]*node, c.layers+1)
	start := c.layers
	g.nodes[start] = []*node{{border: start}}
	for stage, count := range slices.Backward(counts) {
		start -= count
		g.stagesFrom(start, func(*node) {}, func(s edge) { bottleneck = max(bottleneck, s.costs[c.termsOf(stage)]) })
		g.nodes[start+count] = nil
	}
	return bottleneck
}

// row is a node's part of the table: for every number k of stages, low <= k <= high, that the
// layers after its border may be cut into.
type row struct {
	low, high int
	least     []uint64  // by k-low: the least bottleneck, or unreachable
	best      []uint128 // by k-low: the least sum of squares
	next      []*node   // by k-low: the end of the first stage of the best partition; nil if there is none
}

// unreachable is above every bottleneck.
const unreachable = math.MaxUint64

// reach returns into how many stages the layers after a border may be cut, given that all stages,
// those before the border too, cost at most bound. If low > high there is no such number.
func (g *graph) reach(border int) (low, high int) {
	layers := g.layers
	before, after := g.sums[border], g.sums[layers]-g.sums[border]
	low = max(g.n-border, min(1, layers-border), stagesFor(after, g.bound, g.n))
	high = min(layers-border, g.n-stagesFor(before, g.bound, g.n))
	return low, high
}

// stagesFor returns the least number of stages of at most bound that hold a sum of costs; more than
// n if there is none.
func stagesFor(sum, bound uint64, n int) int {
	if sum == 0 {
		return 0
	}
	if bound == 0 {
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

// counts returns the range of k for which the stage can be the first of k stages, with the other
// k-1 after the node that it leads to.
func (s edge) counts() (low, high int) {
	return max(s.from.low, s.to.low+1), min(s.from.high, s.to.high+1)
}

// cost returns the cost of a stage that is the first of the last k.
func (g *graph) cost(s edge, k int) uint64 {
	if g.of == nil {
		return s.costs[0]
	}
	return s.costs[g.of[g.n-k]]
}

// leastBottleneck returns the least bottleneck of n stages, if it is at most bound.
func (g *graph) leastBottleneck() (uint64, bool) {
	g.eachStage(func(n *node) {
		n.least = slices.Repeat([]uint64{unreachable}, n.high-n.low+1)
		if n.border == g.layers {
			n.least[0] = 0
		}
	}, func(s edge) {
		low, high := s.counts()
		for k := low; k <= high; k++ {
			least := &s.from.least[k-s.from.low]
			*least = min(*least, max(g.cost(s, k), s.to.least[k-1-s.to.low]))
		}
	})
	if len(g.nodes[0]) == 0 || g.nodes[0][0].least[0] > g.bound {
		return 0, false
	}
	return g.nodes[0][0].least[0], true
}

// evenest returns the counts of n stages of cost at most bound, which exist, with the least sum of
// squares, and among equals the lexicographically greatest.
func (g *graph) evenest() []int {
	end := g.layers
	g.eachStage(func(n *node) {
		n.best, n.next = make([]uint128, n.high-n.low+1), make([]*node, n.high-n.low+1)
	}, func(s edge) {
		low, high := s.counts()
		for k := low; k <= high; k++ {
			cost := g.cost(s, k)
			if cost > g.bound || s.to.border != end && s.to.next[k-1-s.to.low] == nil {
				continue
			}
			sum := square(cost).plus(s.to.best[k-1-s.to.low])
			best, next := &s.from.best[k-s.from.low], &s.from.next[k-s.from.low]
			if *next == nil || sum.less(*best) || !best.less(sum) && s.to.later(*next, k-1) {
				*best, *next = sum, s.to
			}
		}
	})
	counts := make([]int, 0, g.n)
	at := g.nodes[0][0]
	for k := g.n; k > 0; k-- {
		next := at.next[k-at.low]
		counts = append(counts, next.border-at.border)
		at = next
	}
	return counts
}

// later compares two partitions into k stages, the best ones from n and from other. It says whether
// the first border in which they differ is later in n's.
func (n *node) later(other *node, k int) bool {
	for n.border == other.border && k > 0 {
		n, other = n.next[k-n.low], other.next[k-other.low]
		k--
	}
	return n.border > other.border
}
