package plan

import (
	"cmp"
	"slices"

	"penstock.example/schedule"
)

// inFlightGroup is how many micro-batches of a worker's only stage are in flight together, and how often.
type inFlightGroup struct {
	micro int // in flight together at most
	times int // disjoint groups of this size
}

// inFlight returns the group of a worker, if it has one stage.
func (p *space) inFlight(w int) (g inFlightGroup) {
	if len(p.order[w].stages) > 1 {
		return inFlightGroup{}
	}
	walk := func(each func(held int, reset func())) {
		held, counted, used := map[int]bool{}, 0, map[int]bool{}
		for _, a := range p.order[w].list {
			switch a.Kind {
			case schedule.Forward:
				held[a.MicroBatch] = true
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
				delete(held, a.MicroBatch)
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

// instant is the backward of a stage during which the most micro-batches are in flight on its
// worker.
type instant struct {
	flight []int  // by stage of the worker: other micro-batches in flight
	made   []bool // by stage: the gradients of weights exist
	most   int    // sum of both
}

// instants returns one instant for each stage of a worker.
func (p *space) instants(w int) []instant {
	stages := p.order[w].stages
	list := make([]instant, len(stages))
	flight, made, sum := make([]int, len(stages)), make([]bool, len(stages)), 0
	for _, a := range p.order[w].list {
		k := slices.Index(stages, a.Stage)
		switch a.Kind {
		case schedule.Forward:
			flight[k]++
			sum++
		case schedule.Backward, schedule.BackwardInput:
			flight[k]--
			if sum--; list[k].flight == nil || sum >= list[k].most {
				list[k] = instant{slices.Clone(flight), slices.Clone(made), sum}
			}
		}
		made[k] = made[k] || a.MicroBatch == 0 && (a.Kind == schedule.Backward || a.Kind == schedule.BackwardWeight)
	}
	return list
}

// sharesMemory reports whether units share memory with others. Then only the bytes that they save
// are certain.
func (p *space) sharesMemory() bool { return len(p.chain.Carries)+len(p.chain.GradientCarries) > 0 }

// needs is the bytes that a stage needs in any plan: the most of a backward of one of its units,
// with the unit's input, and sums over all of them.
type needs struct {
	backward int64
	weights  int64 // that are trained
	held     int64 // of what else is there
	input    int64 // of the stage
}

// addUnit adds the i-th unit of the chain to a stage that begins with unit first.
func (n *needs) addUnit(p *space, first, i int) {
	l := &p.chain.Layers[i]
	backward := l.Saved - l.Output
	if !p.sharesMemory() {
		made, input := p.chain.InputGradient, int64(0)
		if i > 0 {
			made, input = p.y[i], p.x[i]
		}
		if backward = l.Saved + p.y[i+1] + max(0, made+l.BackwardTmp-l.BackwardEarly); i > first {
			backward += input
		} else {
			n.input = input
		}
	}
	n.backward = max(n.backward, backward)
	n.weights += l.WeightGradient
	n.held += p.frozenBytes(i, i+1)
}

// byteRow is the least bytes of a stage that begins with some unit, by its number of units.
type byteRow struct {
	needs []needs // of the units added so far
	bytes []int64
}

// leastBytes returns a lower bound of the bytes that stage s, the only one of its worker, needs for
// the units from i up to but not including j.
func (o *deviceCache) leastBytes(s, i, j int) int64 {
	if o.rows[s] == nil {
		o.rows[s] = make([]byteRow, o.p.units)
	}
	row := &o.rows[s][i]
	if row.needs == nil {
		row.needs = make([]needs, 1)
	}
	for len(row.bytes) < j-i {
		row.needs[0].addUnit(o.p, i, i+len(row.bytes))
		row.bytes = append(row.bytes, o.p.leastBytesOf(o.p.place[s], row.needs))
	}
	return row.bytes[j-i-1]
}

// leastBytes returns a lower bound of the bytes that a worker needs for its stages, whatever it
// recomputes. Stages not placed yet have no units. It is the greatest sum at a backward of each
// stage: weights, optimizer state, weight gradients made so far, inputs of micro-batches in flight,
// and the unit's own; and the sum at the end.
func (p *space) leastBytes(w int, first, last []int) int64 {
	stages := p.order[w].stages
	list := make([]needs, len(stages))
	for k, s := range stages {
		for i := first[s]; i < last[s]; i++ {
			list[k].addUnit(p, first[s], i)
		}
	}
	return p.leastBytesOf(w, list)
}

// leastBytesOf is leastBytes for the needs of each of the worker's stages.
func (p *space) leastBytesOf(w int, list []needs) int64 {
	stages := p.order[w].stages
	there, most := int64(0), int64(0)
	for k, s := range stages {
		there += int64(1+p.wishes.State)*list[k].weights + list[k].held
		most += list[k].weights // all gradients at the end
		if s == 0 && list[k] != (needs{}) {
			there += int64(p.m) * p.chain.Input
		}
	}
	for at, one := range p.oracle.instants[w] {
		n := &list[at]
		if *n == (needs{}) {
			continue
		}
		bytes := n.input + n.backward
		for k, s := range stages {
			if one.made[k] {
				bytes += list[k].weights
			}
			if s > 0 && p.place[s-1] != w { // otherwise it may be a part of what the stage before holds
				bytes += int64(one.flight[k]) * list[k].input
			}
		}
		most = max(most, bytes)
	}
	return there + most
}

// leastRecomputation returns a lower bound of the time that stage s, the only one of its worker,
// with units from i up to but not including j recomputes for within the worker's bytes. It is none
// if these do not suffice.
//
// A micro-batch in flight holds its input, and for each unit the tensors that its backward needs,
// or the unit runs once more. As in the fractional knapsack the least time is lost if bytes go
// first to the units with the most time per byte. The micro-batches may share the bytes in any way,
// as the loss is convex. Weights exist; gradients of weights need not exist yet.
func (p *space) leastRecomputation(s, i, j int) int64 {
	limit := p.workers[p.place[s]].bytes
	if limit == 0 {
		return 0
	}
	if p.oracle.leastBytes(s, i, j) > limit {
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
	own := p.sumsOf(s).unit
	carried := len(p.chain.Carries) > 0
	for k := i; k < j; k++ {
		l := &p.chain.Layers[k]
		there -= int64(1+p.wishes.State)*l.WeightGradient + p.frozenBytes(k, k+1)
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

// Oversized returns a unit that no device has memory for, even alone and with one micro-batch, and
// the least bytes that it needs: of several such units the one that needs most. More devices then
// do not help. found is false if no unit is known to be too large; nothing is planned for this.
func (m Costs) Oversized(machine Machine, wishes Options) (unit int, bytes int64, found bool) {
	limit := machine.Largest(wishes.Limit)
	list, err := wishes.named()
	if err != nil || limit == 0 {
		return 0, 0, false
	}
	split := slices.ContainsFunc(list, func(s schedule.Schedule) bool { return s.Split })
	for u := range m.Chain.Layers {
		one := Costs{Chain: m.Chain.Part(u, u+1)}
		if m.Held != nil {
			one.Held = m.Held[u : u+1]
		}
		least := int64(none)
		for _, s := range schedule.Schedules() {
			if s.Virtual != 1 || s.Split && !split {
				continue
			}
			p, err := newSpace(wishes, s, one.Chain, 1, 1, 1, []worker{{speed: 1, bytes: limit}}, nil)
			if err != nil {
				return 0, 0, false
			}
			p.measure(one)
			if p.prepare() != nil {
				return 0, 0, false
			}
			least = min(least, p.oracle.leastBytes(0, 0, 1))
		}
		if least > max(limit, bytes) {
			unit, bytes, found = u, least, true
		}
	}
	return unit, bytes, found
}
