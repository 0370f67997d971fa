package search

import (
	"cmp"
	"slices"

	"penstock/schedule"
)

// group says how many micro-batches of a worker's only stage are in flight together, and how often as
// many that are not counted yet.
type group struct {
	micro int // in flight together at most
	times int // groups of so many, none in two of them
}

// group is that of a worker, if it has one stage.
func (p *space) group(w int) (g group) {
	if len(p.order[w].stages) > 1 {
		return group{}
	}
	walk := func(each func(held int, reset func())) {
		held, counted, used := map[int32]bool{}, 0, map[int32]bool{}
		for _, e := range p.order[w].list {
			switch e.kind {
			case schedule.Forward:
				held[e.microBatch] = true
			case schedule.Backward, schedule.BackwardInput:
				counted = 0
				for i := range held {
					if !used[i] {
						counted++
					}
				}
				each(counted, func() {
					for i := range held {
						used[i] = true
					}
				})
				delete(held, e.microBatch)
			}
		}
	}
	walk(func(held int, _ func()) { g.micro = max(g.micro, held) })
	walk(func(held int, reset func()) {
		if held == g.micro {
			g.times++
			reset()
		}
	})
	return g
}

// fixed is the bytes that a worker holds at the end of a step whatever it recomputes, of a stage: weights,
// their gradients, the optimizer's state, and the batch.
func (p *space) fixed(s, i, j int) (bytes int64) {
	for _, l := range p.chain.Layers[i:j] {
		bytes += int64(2+p.wishes.State) * l.WeightGradient
	}
	if s == 0 {
		bytes += int64(p.m) * p.chain.Input
	}
	return bytes
}

// least is a bound of the bytes that a worker needs for its stages, whatever it recomputes: all that is
// fixed; or, at the backward of each unit, weights, what the unit saves and its backward takes, and, with
// one stage, the inputs of the other micro-batches in flight.
func (p *space) least(w int, first, last []int) int64 {
	carried := len(p.chain.Carries)+len(p.chain.GradientCarries) > 0
	fixed, weights, most := int64(0), int64(0), int64(0)
	for _, s := range p.order[w].stages {
		fixed += p.fixed(s, first[s], last[s])
		for k := first[s]; k < last[s]; k++ {
			l := &p.chain.Layers[k]
			weights += int64(1+p.wishes.State) * l.WeightGradient
			takes := l.Saved - l.Output
			if !carried {
				takes += max(0, l.Gradient+l.BackwardTmp-l.BackwardEarly)
			}
			most = max(most, takes)
		}
		if s == 0 {
			weights += int64(p.m) * p.chain.Input
		} else if g := p.oracle.groups[w]; g.times > 0 && !carried {
			most += int64(g.micro-1) * p.x[first[s]]
		}
	}
	return max(weights+most, fixed)
}

// again is the least time that stage s, the only one of its worker, with units from i up to but not
// including j recomputes for within the worker's bytes, or none if they do not suffice.
//
// Micro-batches in flight together hold their inputs, and what they hold of a unit for its backward, or
// the unit runs once more: as in the fractional knapsack, least time is lost where bytes go first to the
// units that take most time a byte. How bytes are shared between the micro-batches does not matter, as
// the loss is convex. Weights are there, gradients of weights need not be yet.
func (p *space) again(s, i, j int) int64 {
	limit := p.workers[p.place[s]].bytes
	if limit == 0 {
		return 0
	}
	first, last := make([]int, p.stages()), make([]int, p.stages())
	if first[s], last[s] = i, j; p.least(p.place[s], first, last) > limit {
		return none
	}
	g := p.oracle.groups[p.place[s]]
	if g.times == 0 {
		return 0
	}
	there := limit
	if s == 0 {
		there -= int64(p.m) * p.chain.Input
	}
	type unit struct {
		bytes int64
		time  float64
	}
	var list []unit
	own := p.of(s).unit
	carried := len(p.chain.Carries) > 0
	for k := i; k < j; k++ {
		l := &p.chain.Layers[k]
		there -= int64(1+p.wishes.State) * l.WeightGradient
		u := unit{l.Saved - l.Output, float64(min(own[k].forward, own[k].noGrad))}
		if !carried && k < j-1 {
			u.bytes = l.Saved
		}
		list = append(list, u)
	}
	room := float64(there) / float64(g.micro)
	if s > 0 && !carried {
		room -= float64(p.x[i])
	}
	slices.SortFunc(list, func(a, b unit) int {
		return cmp.Compare(b.time*float64(a.bytes), a.time*float64(b.bytes)) // most time a byte first
	})
	lost := 0.0
	for _, u := range list {
		switch {
		case room >= float64(u.bytes):
			room -= float64(u.bytes)
		case room > 0:
			lost += u.time * (1 - room/float64(u.bytes))
			room = 0
		default:
			lost += u.time
		}
	}
	return int64(lost * float64(g.micro*g.times) * (1 - 1e-9))
}
