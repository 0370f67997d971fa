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

// flight is the micro-batches in flight on a worker at a backward, beside the one that it is of: how many of
// each of the worker's stages.
type flight []int

// flights are those at the backwards of each of a worker's stages, without those that are part of another.
func (p *space) flights(w int) [][]flight {
	o := &p.order[w]
	out := make([][]flight, len(o.stages))
	now := make(flight, len(o.stages))
	within := func(a, b flight) bool {
		for k := range a {
			if a[k] > b[k] {
				return false
			}
		}
		return true
	}
	for _, e := range o.list {
		k := slices.Index(o.stages, int(e.stage))
		switch e.kind {
		case schedule.Forward:
			now[k]++
		case schedule.Backward, schedule.BackwardInput:
			now[k]--
			if !slices.ContainsFunc(out[k], func(f flight) bool { return within(now, f) }) {
				out[k] = append(slices.DeleteFunc(out[k], func(f flight) bool { return within(f, now) }), slices.Clone(now))
			}
		}
	}
	return out
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
// fixed; or, at the backward of each unit, weights, what the unit saves and its backward takes, and the
// inputs of the other micro-batches in flight. An input that comes from the stage before on the same worker
// may be a part of what that holds.
func (p *space) least(w int, first, last []int) int64 {
	carried := len(p.chain.Carries)+len(p.chain.GradientCarries) > 0
	stages := p.order[w].stages
	fixed, weights, most := int64(0), int64(0), int64(0)
	for k, s := range stages {
		fixed += p.fixed(s, first[s], last[s])
		unit := int64(0)
		for i := first[s]; i < last[s]; i++ {
			l := &p.chain.Layers[i]
			weights += int64(1+p.wishes.State) * l.WeightGradient
			takes := l.Saved - l.Output
			if !carried {
				takes += max(0, l.Gradient+l.BackwardTmp-l.BackwardEarly)
			}
			unit = max(unit, takes)
		}
		most = max(most, unit)
		if s == 0 {
			weights += int64(p.m) * p.chain.Input
		}
		if carried {
			continue
		}
		for _, f := range p.oracle.flights[w][k] {
			others := int64(0)
			for at, of := range stages {
				if of > 0 && p.place[of-1] != w {
					others += int64(f[at]) * p.x[first[of]]
				}
			}
			most = max(most, unit+others)
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
