package balance

import (
	"fmt"
	"math"
)

// problem is a partition problem in which a stage costs more than the sum of its layers.
type problem struct {
	layer []float64 // of a layer, in whatever stage
	enter []float64 // of a stage whose first layer it is
	leave []float64 // of a stage whose last layer it is
	skips []skipTerms
}

// skipTerms is what a skip adds to the stages that it leaves and enters.
type skipTerms struct {
	from int
	to   []int   // ascending
	in   float64 // to each later stage with a layer of to
	out  float64 // to the stage of from, for each later stage with a layer of to
	keep float64 // to the stage of from, once, if any later stage has a layer of to
}

// solve returns the best n counts, in the order that Partition promises.
func (p *problem) solve(n int) ([]int, error) {
	c, err := p.chain()
	if err != nil {
		return nil, err
	}
	return c.cut(n), nil
}

// chain is the problem in whole numbers. All terms together, each as often as any partition can count it, add up to at most 2^62.
func (p *problem) chain() (*chain, error) {
	terms, largest := 0, 0.0
	add := func(what string, i, times int, costs ...float64) error {
		for _, cost := range costs {
			if math.IsInf(cost, 0) {
				return fmt.Errorf("balance: the cost of %s %d is more than a float64 holds: give it in a larger unit", what, i)
			}
			largest = max(largest, cost)
		}
		terms += times * len(costs)
		return nil
	}
	for i := range p.layer {
		if err := add("layer", i, 1, p.layer[i], p.enter[i], p.leave[i]); err != nil {
			return nil, err
		}
	}
	for i, s := range p.skips {
		if err := add("skip", i, len(s.to), s.in, s.out, s.keep); err != nil {
			return nil, err
		}
	}
	u := unitFor(largest, terms)
	rounded := func(costs []float64) []uint64 {
		out := make([]uint64, len(costs))
		for i, cost := range costs {
			out[i] = u.round(cost)
		}
		return out
	}
	c := &chain{layer: rounded(p.layer), enter: rounded(p.enter), leave: rounded(p.leave)}
	for _, s := range p.skips {
		c.skips = append(c.skips, link{from: s.from, to: s.to, in: u.round(s.in), out: u.round(s.out), keep: u.round(s.keep)})
	}
	c.index()
	return c, nil
}
