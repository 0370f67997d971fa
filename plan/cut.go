package plan

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"penstock.example/internal/arg"
)

// Partition returns how many layers each of n stages takes, in order: n counts of at least one, which
// add up to len(costs). A stage's cost is the sum of its layers' costs. Of all such partitions
// Partition returns
//
//  1. one with the least bottleneck,
//  2. among those, one with the least sum of squared stage costs,
//  3. among those, the one with the lexicographically greatest counts: the first stage takes as
//     many layers as it can, then the second, and so on. Fifteen equal layers over eight stages are
//     2 2 2 2 2 2 2 1.
//
// Costs are first rounded to multiples of a power of two, so that equal stages are equal. Whole numbers
// are exact while the largest times the number of layers is below 2^29. For L layers Partition takes
// O(n·L·w) time and O(n·L) memory, with w layers in the longest stage within the bottleneck.
//
// It returns an error unless n is 1 to len(costs), and costs are finite and at least 0.
func Partition(costs []float64, n int) ([]int, error) {
	layers := make([]Layer, len(costs))
	for i, cost := range costs {
		err := arg.Between("plan", fmt.Sprintf("the cost of layer %d", i), cost, 0, math.MaxFloat64)
		if err != nil {
			return nil, err
		}
		layers[i].Forward = cost
	}
	counts, _, err := ByTime(layers, n, TimeConfig{})
	return counts, err
}

// amounts are the parts of a cost, in the order of [StageTime] or [StageSize].
type amounts [6]float64

func (a *amounts) add(b amounts) {
	for i := range a {
		a[i] += b[i]
	}
}

func (a amounts) total() (sum float64) {
	for _, x := range a {
		sum += x
	}
	return sum
}

// stageTerms are the costs that a stage adds up.
type stageTerms struct {
	layer []amounts // by layer of the stage
	enter []amounts // by its first layer
	leave []amounts // by its last layer
	skips []skipTerms
}

// skipTerms are the costs that a skip or a tie adds to stages.
type skipTerms struct {
	from int
	to   []int   // in ascending order
	in   amounts // to each later stage with a layer of to
	out  amounts // to the stage of from, if a later stage has a layer of to
}

func newTerms(layers int) stageTerms {
	return stageTerms{make([]amounts, layers), make([]amounts, layers), make([]amounts, layers), nil}
}

// cost returns the cost of a stage with the layers from start up to but not including end.
func (t *stageTerms) cost(start, end int) amounts {
	sum := t.enter[start]
	sum.add(t.leave[end-1])
	for _, l := range t.layer[start:end] {
		sum.add(l)
	}
	for _, s := range t.skips {
		switch {
		case s.from < start && slices.ContainsFunc(s.to,
			func(to int) bool { return start <= to && to < end }):
			sum.add(s.in)
		case start <= s.from && s.from < end && s.to[len(s.to)-1] >= end:
			sum.add(s.out)
		}
	}
	return sum
}

// cutter finds the best cut in whole numbers, whose sum of squares a uint64 holds.
//
// A stage costs at least the sum of its layers, so a bound of the bottleneck limits its length. Within
// the bound dynamic programming tries every stage, from the last layer back. A first pass finds the
// least bottleneck. A second pass takes it as the bound and finds the least sum of squares.
type cutter struct {
	layers int
	stages []*stageTerms
	unit   int       // costs are multiples of 2^-unit
	sums   []float64 // of a stage's terms: costs of the layers before one, in units
	enter  []float64
	leave  []float64
	events [][]event // by layer
}

// event is a change of a stage's cost when a layer is added to its end. It counts for stages that begin
// with layer after+1 to from.
type event struct {
	after, from int
	inside      bool // further layers never undo the change
	by          float64
}

// prepare sums a stage's terms up.
func (c *cutter) prepare(t *stageTerms) {
	round := func(a amounts) (sum float64) {
		for _, x := range a {
			sum += math.RoundToEven(math.Ldexp(x, c.unit))
		}
		return sum
	}
	c.sums, c.enter, c.leave, c.events = []float64{0}, nil, nil, make([][]event, c.layers)
	for i := range t.layer {
		c.sums = append(c.sums, c.sums[i]+round(t.layer[i]))
		c.enter, c.leave = append(c.enter, round(t.enter[i])), append(c.leave, round(t.leave[i]))
	}
	for _, s := range t.skips {
		in, out, before := round(s.in), round(s.out), s.from
		for _, to := range s.to {
			c.events[to] = append(c.events[to], event{before, to, true, in})
			before = to
		}
		c.events[s.from] = append(c.events[s.from], event{-1, s.from, false, out})
		c.events[before] = append(c.events[before], event{-1, s.from, false, -out})
	}
}

// cell is the best cut of the last layers into the last stages.
type cell struct {
	value uint64 // the bottleneck, or the sum of squares
	end   int    // of the first of these stages; 0 is no cut
}

// pass returns the best cut into stages of at most bound, or no counts. join makes the value of a cut
// from the cost of its first stage and the value of the rest.
func (c *cutter) pass(bound float64, join func(cost uint64, rest uint64) uint64) (counts []int,
	value uint64) {
	n := len(c.stages)
	table := make([][]cell, n+1)
	table[n] = make([]cell, c.layers+1)
	table[n][c.layers].end = c.layers
	for s := n - 1; s >= 0; s-- {
		if s == n-1 || c.stages[s] != c.stages[s+1] {
			c.prepare(c.stages[s])
		}
		row := make([]cell, c.layers+1)
		for start := s; start <= c.layers-(n-s) && (s > 0 || start == 0); start++ {
			inside, leaving := c.enter[start], 0.0
			for end := start + 1; end <= c.layers-(n-1-s); end++ {
				for _, e := range c.events[end-1] {
					switch {
					case start <= e.after || start > e.from:
					case e.inside:
						inside += e.by
					default:
						leaving += e.by
					}
				}
				within := inside + c.sums[end] - c.sums[start]
				if within > bound { // a longer stage has no less inside
					break
				}
				cost, rest := within+leaving+c.leave[end-1], table[s+1][end]
				if rest.end == 0 || cost > bound {
					continue
				}
				if v := join(uint64(cost), rest.value); row[start].end == 0 || v <= row[start].value {
					row[start] = cell{v, end} // the last of equal cuts, as its stage is longest
				}
			}
		}
		table[s] = row
	}
	if table[0][0].end == 0 {
		return nil, 0
	}
	for s, at := 0, 0; s < n; s++ {
		end := table[s][at].end
		counts, at = append(counts, end-at), end
	}
	return counts, table[0][0].value
}

// cutLayers returns the number of layers of each stage, best as [Partition] says, and their costs.
func cutLayers(layers int, stages []*stageTerms) ([]int, []amounts, error) {
	if n := len(stages); n < 1 || n > layers {
		return nil, nil, refuse("the number of stages", n, "",
			fmt.Sprintf("want 1 to the number of layers, %d", layers))
	}
	largest, count := 0.0, 0
	for _, t := range stages {
		for i := range t.layer {
			for _, a := range []amounts{t.layer[i], t.enter[i], t.leave[i]} {
				largest, count = max(largest, a.total()), count+1
			}
		}
		for _, s := range t.skips {
			largest, count = max(largest, s.in.total(), s.out.total()), count+len(s.to)+1
		}
	}
	if math.IsInf(largest, 0) {
		return nil, nil, errors.New("plan: the cost of a layer exceeds a float64; give it in a larger unit")
	}
	_, exponent := math.Frexp(largest)
	c := &cutter{layers: layers, stages: stages, unit: 31 - bits.Len(uint(count/len(stages))) - exponent}
	c.prepare(stages[0])
	bound := math.Ceil(c.sums[layers] / float64(len(stages)))
	var bottleneck uint64
	var counts []int
	for ; counts == nil; bound += max(1, math.Floor(bound/4)) {
		counts, bottleneck = c.pass(bound, func(cost, rest uint64) uint64 { return max(cost, rest) })
	}
	counts, _ = c.pass(float64(bottleneck), func(cost, rest uint64) uint64 { return cost*cost + rest })
	start, costs := 0, []amounts(nil)
	for s, n := range counts {
		costs = append(costs, stages[s].cost(start, start+n))
		start += n
	}
	return counts, costs, nil
}
