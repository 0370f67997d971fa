package balance

import (
	"fmt"
	"math"
)

// problem is a partition problem in which a stage costs more than the sum of its layers, and stages
// may have different terms.
type problem struct {
	terms []terms
	of    []int // by stage: the index of its terms; nil is the first for all
	skips []route
}

// terms are the parts of a stage's cost.
type terms struct {
	layer []float64   // by layer in the stage
	enter []float64   // by the stage's first layer
	leave []float64   // by the stage's last layer
	skips []skipTerms // in the order of problem.skips
}

// route is the layers of a skip or a tie.
type route struct {
	from int
	to   []int // in ascending order
}

// skipTerms is what a skip adds to the cost of stages.
type skipTerms struct {
	in   float64 // to each later stage with a layer of to
	out  float64 // to the stage of from, for each later stage with a layer of to
	keep float64 // to the stage of from, once, if any later stage has a layer of to
}

func newTerms(layers int) terms {
	return terms{layer: make([]float64, layers), enter: make([]float64, layers), leave: make([]float64, layers)}
}

// byStage returns the distinct settings and, by stage, the index of its own. One setting is for all
// stages, and none stands for the zero value.
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

// setting returns the setting of a stage.
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

func checkSettings[T any](field string, settings []T, stages int) error {
	if len(settings) > 1 && len(settings) != stages {
		return &ConfigError{Of: "balance", Field: field, Value: settings,
			Problem: fmt.Sprintf("%d for %d stages", len(settings), stages), Remedy: "want one for each stage, one for all, or none"}
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

// chain returns the problem in whole numbers. All terms together, each as often as any partition
// can count it, add up to at most 2^62.
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
