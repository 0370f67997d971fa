package balance

import (
	"fmt"
	"math"
)

// problem is a partition problem in which a stage costs more than the sum of its layers, and one stage counts otherwise than another.
type problem struct {
	terms []terms
	of    []int // by stage: which of the prices are its own; nil is the first for all
	skips []route
}

// terms are what a stage's cost is made of.
type terms struct {
	layer []float64 // of a layer, in the stage
	enter []float64 // of a stage whose first layer it is
	leave []float64 // of a stage whose last layer it is
	skips []skipTerms
}

// route is where something goes past layers.
type route struct {
	from int
	to   []int // ascending
}

// skipTerms is what a skip adds to the stages that it leaves and enters.
type skipTerms struct {
	in   float64 // to each later stage with a layer of to
	out  float64 // to the stage of from, for each later stage with a layer of to
	keep float64 // to the stage of from, once, if any later stage has a layer of to
}

func newTerms(layers int) terms {
	return terms{layer: make([]float64, layers), enter: make([]float64, layers), leave: make([]float64, layers)}
}

// byStage finds what differs between stages: the distinct settings, and for each stage which is its own. A single setting is for all; without any, the zero one is.
func byStage[T comparable](settings []T) (distinct []T, of []int) {
	if len(settings) == 0 {
		settings = make([]T, 1)
	}
	known := map[T]int{}
	for _, s := range settings {
		if _, ok := known[s]; !ok {
			known[s] = len(distinct)
			distinct = append(distinct, s)
		}
		of = append(of, known[s])
	}
	if len(settings) == 1 {
		of = nil
	}
	return distinct, of
}

// setting is that of a stage.
func setting[T any](settings []T, stage int) T {
	var none T
	switch len(settings) {
	case 0:
		return none
	case 1:
		return settings[0]
	}
	return settings[stage]
}

func checkSettings(what string, settings, stages int) error {
	if settings > 1 && settings != stages {
		return fmt.Errorf("balance: %d %s for %d stages: want one for each, one for all, or none", settings, what, stages)
	}
	return nil
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
	count, largest := 0, 0.0
	add := func(what string, i, times int, costs ...float64) error {
		for _, cost := range costs {
			if math.IsInf(cost, 0) {
				return fmt.Errorf("balance: the cost of %s %d is more than a float64 holds: give it in a larger unit", what, i)
			}
			largest = max(largest, cost)
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
			if err := add("skip", i, len(p.skips[i].to), s.in, s.out, s.keep); err != nil {
				return nil, err
			}
		}
	}
	u := unitFor(largest, count)
	rounded := func(costs []float64) []uint64 {
		out := make([]uint64, len(costs))
		for i, cost := range costs {
			out[i] = u.round(cost)
		}
		return out
	}
	c := &chain{layers: len(p.terms[0].layer), of: p.of, skips: p.skips}
	for _, t := range p.terms {
		price := intTerms{layer: rounded(t.layer), enter: rounded(t.enter), leave: rounded(t.leave)}
		for _, s := range t.skips {
			price.skips = append(price.skips, intSkipTerms{in: u.round(s.in), out: u.round(s.out), keep: u.round(s.keep)})
		}
		c.terms = append(c.terms, price)
	}
	c.index()
	return c, nil
}
