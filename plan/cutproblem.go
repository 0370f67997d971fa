package plan

import (
	"fmt"
	"math"
)

// cutProblem is a partition problem in which a stage costs more than the sum of its layers, and stages
// may have different terms.
type cutProblem struct {
	terms []stageTerms
	of    []int // by stage: the index of its terms; nil is the first for all
	skips []route
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

// route is the layers of a skip or a tie.
type route struct {
	from int
	to   []int // in ascending order
}

// skipTerms are the costs that a route adds to stages.
type skipTerms struct {
	in  amounts // to each later stage with a layer of to
	out amounts // to the stage of from, if a later stage has a layer of to
}

func newTerms(layers int) stageTerms {
	of := func() []amounts { return make([]amounts, layers) }
	return stageTerms{layer: of(), enter: of(), leave: of()}
}

// distinctSettings returns the distinct settings and, by stage, the index of its own. One setting is for
// all stages, and none stands for the zero value.
func distinctSettings[T comparable](settings []T) (list []T, of []int) {
	if len(settings) == 0 {
		settings = make([]T, 1)
	}
	known := map[T]int{}
	for _, s := range settings {
		if _, ok := known[s]; !ok {
			known[s] = len(list)
			list = append(list, s)
		}
		of = append(of, known[s])
	}
	if len(settings) == 1 {
		of = nil
	}
	return list, of
}

func checkSettings[T any](field string, settings []T, stages int) error {
	if len(settings) > 1 && len(settings) != stages {
		return refuse(field, settings, fmt.Sprintf("%d for %d stages", len(settings), stages),
			"want one for each stage, one for all, or none")
	}
	return nil
}

// solve returns the best n counts, in the order that Partition promises, and the cost of each stage.
func (p *cutProblem) solve(n int) ([]int, []amounts, error) {
	c, err := p.cutter()
	if err != nil {
		return nil, nil, err
	}
	counts := c.cut(n)
	return counts, p.costs(counts), nil
}

// costs returns the cost of each stage of a balance.
func (p *cutProblem) costs(counts []int) []amounts {
	costs, start := make([]amounts, len(counts)), 0
	for s, count := range counts {
		t, end := &p.terms[0], start+count
		if p.of != nil {
			t = &p.terms[p.of[s]]
		}
		costs[s].add(t.enter[start])
		costs[s].add(t.leave[end-1])
		for _, l := range t.layer[start:end] {
			costs[s].add(l)
		}
		for i, l := range p.skips {
			switch {
			case l.from < start && l.within(start, end):
				costs[s].add(t.skips[i].in)
			case l.from >= start && l.from < end && l.to[len(l.to)-1] >= end:
				costs[s].add(t.skips[i].out)
			}
		}
		start = end
	}
	return costs
}

// within says whether a layer of to is in the stage from start up to but not including end.
func (l route) within(start, end int) bool {
	for _, to := range l.to {
		if start <= to && to < end {
			return true
		}
	}
	return false
}

// intTerms are totals of terms in whole numbers.
type intTerms struct {
	layer, enter, leave []uint64
	in, out             []uint64 // by skip
}

// cutter returns the problem in whole numbers. All terms together, each as often as any partition
// can count it, add up to at most 2^62.
func (p *cutProblem) cutter() (*cutter, error) {
	count, largest := 0, 0.0
	add := func(what string, i, times int, costs ...amounts) error {
		for _, cost := range costs {
			total := cost.total()
			if math.IsInf(total, 0) {
				return fmt.Errorf("plan: the cost of %s %d is more than a float64 holds: "+
					"give it in a larger unit", what, i)
			}
			largest = max(largest, total)
		}
		count += times * len(costs)
		return nil
	}
	for _, t := range p.terms {
		for i := range t.layer {
			if err := add("layer", i, 1, t.layer[i], t.enter[i], t.leave[i]); err != nil {
				return nil, err
			}
		}
		for i, s := range t.skips {
			if err := add("skip", i, len(p.skips[i].to), s.in, s.out); err != nil {
				return nil, err
			}
		}
	}
	u := unitFor(largest, count)
	rounded := func(costs []amounts) (list []uint64) {
		for _, cost := range costs {
			list = append(list, u.round(cost.total()))
		}
		return list
	}
	layers := len(p.terms[0].layer)
	c := &cutter{layers: layers, of: p.of, skips: p.skips,
		stashes: make([][]int, layers), pops: make([][]pop, layers)}
	for _, t := range p.terms {
		price := intTerms{layer: rounded(t.layer), enter: rounded(t.enter), leave: rounded(t.leave)}
		for _, s := range t.skips {
			price.in = append(price.in, u.round(s.in.total()))
			price.out = append(price.out, u.round(s.out.total()))
		}
		c.terms = append(c.terms, price)
	}
	for s, l := range c.skips {
		c.stashes[l.from] = append(c.stashes[l.from], s)
		for k, to := range l.to {
			c.pops[to] = append(c.pops[to], pop{s, k})
		}
	}
	return c, nil
}
