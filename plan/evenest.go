package plan

import (
	"math"
	"math/bits"
	"sort"
)

// prefixSums returns s with s[i] the cost of the first i layers as integers: stage [i, j) costs
// s[j]-s[i]. The scale, a power of two, is the largest that keeps every sum at or below 2^62.
//
// Sums of floats would be shorter. Their rounding makes equal stages differ in the last bit, and so
// decides ties by accident.
func prefixSums(costs []float64) []uint64 {
	largest := 0.0
	for _, cost := range costs {
		largest = max(largest, cost)
	}
	u := unitFor(largest, len(costs))

	sums := make([]uint64, len(costs)+1)
	for i, cost := range costs {
		sums[i+1] = sums[i] + u.round(cost)
	}
	return sums
}

// scale is an exponent: costs are counted in multiples of 2^-unit.
type scale int

// unitFor returns the finest unit in which a number of costs, none above largest, add up to at most
// 2^62.
func unitFor(largest float64, costs int) scale {
	_, exponent := math.Frexp(largest) // largest < 2^exponent
	return scale(62 - bits.Len(uint(costs)) - exponent)
}

func (u scale) round(cost float64) uint64 { return uint64(math.RoundToEven(math.Ldexp(cost, int(u)))) }

// leastBottleneck returns the least b such that at most n stages of cost at most b hold all layers.
// At most n is as good as exactly n: with more layers than stages some stage can be
// split, and a split makes no stage costlier.
func leastBottleneck(sums []uint64, n int) uint64 {
	total := sums[len(sums)-1]
	low, high := total/uint64(n), total // the least b lies in [low, high]
	for low < high {
		middle := low + (high-low)/2
		if reach(sums, n, middle) {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return low
}

// reach reports whether n stages of cost at most b, filled greedily, hold all layers.
func reach(sums []uint64, n int, b uint64) bool {
	layers := len(sums) - 1
	end := 0
	for range n {
		start := end
		end += sort.Search(layers-start, func(i int) bool { return sums[start+i+1]-sums[start] > b })
		if end == layers {
			return true
		}
	}
	return false
}

// evenest returns the counts of n stages of cost at most bottleneck with the least sum of squares,
// and among equals the lexicographically greatest.
//
// It works from the last stage back. With best[k][i] the least sum of squares of k stages that hold
// the layers from i on,
//
//	best[k][i] = min over j of (s[j]-s[i])² + best[k-1][j]      where s[j]-s[i] <= bottleneck
//
// and cut[k][i] is the greatest j that reaches it. Following the cuts from layer 0 then gives the
// lexicographically greatest counts.
//
// The square of a difference satisfies the quadrangle inequality, also with the forbidden stages
// counted as infinite. So cut[k] never decreases in i: solving the middle i first bounds the cuts
// of both halves, and one k takes O(L log L). (Z. Galil, K. Park, Dynamic programming with
// convexity, concavity and sparsity, Theoretical Computer Science 92, 1992.)
func evenest(sums []uint64, n int, bottleneck uint64) []int {
	layers := len(sums) - 1
	best, next := make([]uint128, layers+1), make([]uint128, layers+1)
	cuts := make([][]int32, n+1)

	// k stages can hold the layers from i on exactly for the i in [first, layers-k]: from is the
	// first for k-1.
	from := layers
	for k := 1; k <= n; k++ {
		best, next = next, best
		first := sort.Search(from, func(i int) bool { return sums[from]-sums[i] <= bottleneck })
		row := evenRow{sums: sums, bottleneck: bottleneck, next: next, best: best, cut: make([]int32, layers+1)}
		row.solve(first, layers-k, from, layers-k+1)
		cuts[k], from = row.cut, first
	}

	counts := make([]int, n)
	start := 0
	for i := range counts {
		end := int(cuts[n-i][start])
		counts[i] = end - start
		start = end
	}
	return counts
}

// evenRow is one row of evenest's table: best and cut for k stages, filled from next, the row for
// k-1.
type evenRow struct {
	sums       []uint64
	bottleneck uint64
	next       []uint128
	best       []uint128
	cut        []int32
}

// solve fills best and cut for every first layer i in [low, high], given that the cuts lie in
// [cutLow, cutHigh].
func (s *evenRow) solve(low, high, cutLow, cutHigh int) {
	if low > high {
		return
	}
	i := low + (high-low)/2
	s.cut[i] = -1
	for j := max(cutLow, i+1); j <= cutHigh; j++ {
		cost := s.sums[j] - s.sums[i]
		if cost > s.bottleneck {
			break
		}
		sum := square(cost).plus(s.next[j])
		if s.cut[i] < 0 || !s.best[i].less(sum) {
			s.best[i], s.cut[i] = sum, int32(j)
		}
	}
	s.solve(low, i-1, cutLow, int(s.cut[i]))
	s.solve(i+1, high, int(s.cut[i]), cutHigh)
}

// uint128 holds a sum of squares. All stage costs together are at most 2^62, so their squares' sum
// is at most 2^124.
type uint128 struct{ high, low uint64 }

func square(x uint64) uint128 {
	high, low := bits.Mul64(x, x)
	return uint128{high, low}
}

func (a uint128) plus(b uint128) uint128 {
	low, carry := bits.Add64(a.low, b.low, 0)
	return uint128{a.high + b.high + carry, low}
}

func (a uint128) less(b uint128) bool {
	return a.high < b.high || a.high == b.high && a.low < b.low
}
