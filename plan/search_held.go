package plan

import (
	"cmp"
	"slices"

	"penstock.example/remat"
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

// instant is a computation of a worker, and the memory held meanwhile for other micro-batches and
// stages.
type instant struct {
	stage   int           // an index into the worker's stages
	kind    schedule.Kind // Forward, Backward, or BackwardWeight, the second part
	makes   bool          // a whole backward of micro-batch 0, which makes the gradients of weights
	flight  []int         // by stage of the worker: other micro-batches in flight
	between []int         // by stage: micro-batches between the parts of their backwards, in a second part this one too
	made    []bool        // by stage: the gradients of weights exist
}

// holdsNoMore reports whether a holds no more than b.
func (a instant) holdsNoMore(b instant) bool {
	if a.stage != b.stage || a.kind != b.kind || a.makes && !b.makes {
		return false
	}
	for k := range a.flight {
		if a.flight[k] > b.flight[k] || a.between[k] > b.between[k] || a.made[k] && !b.made[k] {
			return false
		}
	}
	return true
}

// instants returns the instants of a worker, without the ones that hold no more than another.
func (p *space) instants(w int) (list []instant) {
	o := &p.order[w]
	n := len(o.stages)
	flight, between, made := make([]int, n), make([]int, n), make([]bool, n)
	for _, a := range o.list {
		k := slices.Index(o.stages, a.Stage)
		one := instant{stage: k, kind: a.Kind, flight: flight, between: between, made: made}
		switch a.Kind {
		case schedule.Recompute:
			continue
		case schedule.Backward, schedule.BackwardInput:
			flight[k]--
			one.kind, one.makes = schedule.Backward, a.Kind == schedule.Backward && a.MicroBatch == 0
		}
		if !slices.ContainsFunc(list, one.holdsNoMore) {
			one.flight, one.between, one.made = slices.Clone(flight), slices.Clone(between), slices.Clone(made)
			list = append(slices.DeleteFunc(list, func(i instant) bool { return i.holdsNoMore(one) }), one)
		}
		switch a.Kind {
		case schedule.Forward:
			flight[k]++
		case schedule.Backward:
			made[k] = made[k] || one.makes
		case schedule.BackwardInput:
			between[k]++
		case schedule.BackwardWeight:
			between[k]--
			made[k] = made[k] || a.MicroBatch == 0
		}
	}
	return list
}

// unitBytes is the bytes that a unit needs in any plan, in addition to its input: in its forward,
// in its backward, in a backward that makes the gradients of weights, in addition to later units'
// gradients, and for the weights.
type unitBytes struct{ forward, backward, makes, weights int64 }

// unitNeeds returns the bytes of each unit. For units that share memory with others only the bytes
// that they save are certain.
func (p *space) unitNeeds() (list []unitBytes) {
	for i, l := range p.chain.Layers {
		made := p.chain.InputGradient
		if i > 0 {
			made = p.y[i]
		}
		t := unitBytes{weights: l.WeightGradient, backward: l.Saved - l.Output}
		if t.makes = t.backward; !p.sharesMemory() {
			t.forward = min(l.Output+l.ForwardNoGradTmp, l.Saved+l.ForwardTmp)
			rest := l.Saved + p.y[i+1]
			t.backward = rest + max(0, made+l.BackwardTmp-l.BackwardEarly)
			t.makes = rest + max(0, made+l.WeightGradient+l.BackwardTmp-l.BackwardEarly)
		}
		list = append(list, t)
	}
	return list
}

// sharesMemory reports whether units share memory with others.
func (p *space) sharesMemory() bool { return len(p.chain.Carries)+len(p.chain.GradientCarries) > 0 }

// needs is the greatest need of one of a stage's units, with its input, and the need of the whole
// stage.
type needs struct {
	forward, backward, makes int64
	weights                  int64 // bytes of the weights that are trained
	held                     int64 // of what else is there
	input                    int64 // bytes of the stage's input
	// between is the bytes of a micro-batch between the parts of its backward. ends says which of
	// them lie at the end of the stage: the output, and its gradient.
	between int64
	ends    [2]bool
}

// addUnit adds the i-th unit of the chain to a stage that begins with unit first.
func (n *needs) addUnit(p *space, first, i int) {
	u, input := &p.oracle.units[i], int64(0)
	if i == first {
		if n.input = 0; first > 0 && !p.sharesMemory() {
			n.input = p.x[first]
		}
	} else if !p.sharesMemory() {
		input = p.x[i]
	}
	n.forward = max(n.forward, input+u.forward)
	n.backward = max(n.backward, input+u.backward)
	n.makes = max(n.makes+u.weights, input+u.makes)
	n.weights += u.weights
	n.held += p.frozenBytes(i, i+1)
	n.addDeferred(p, first, i)
}

// addDeferred adds the bytes that a unit holds between the parts of a backward. Those at the first
// boundary of the stage may be part of the memory of the stage before.
func (n *needs) addDeferred(p *space, first, i int) {
	ends := n.ends
	n.ends = [2]bool{}
	if p.chain.Layers[i].WeightGradient == 0 {
		return
	}
	d := remat.Deferred{Input: true, Gradient: true} // as planner.FromChain has it
	if p.chain.Deferred != nil {
		d = p.chain.Deferred[i]
	}
	if n.between += d.Bytes; p.sharesMemory() {
		return
	}
	if d.Input && i > first && !ends[0] {
		n.between += p.x[i]
	}
	if d.InputGradient && i > first && !ends[1] {
		n.between += p.y[i]
	}
	if n.ends = [2]bool{d.Output, d.Gradient}; d.Output {
		n.between += p.x[i+1]
	}
	if d.Gradient {
		n.between += p.y[i+1]
	}
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
// recomputes. Stages not placed yet have no units. It is the greatest sum at the forward and the
// backward of each unit: weights, optimizer state, weight gradients made so far, inputs of
// micro-batches in flight, bytes left between the parts of backwards, and the unit's own; and the
// sum at the end.
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
	for at := range p.oracle.instants[w] {
		one := &p.oracle.instants[w][at]
		n := &list[one.stage]
		if *n == (needs{}) {
			continue
		}
		bytes := int64(0)
		switch {
		case one.kind == schedule.Forward:
			bytes = n.input + n.forward
		case one.makes:
			bytes = n.input + n.makes
		case one.kind == schedule.Backward:
			bytes = n.input + n.backward
		}
		for k, s := range stages {
			if one.made[k] {
				bytes += list[k].weights
			}
			bytes += int64(one.between[k]) * list[k].between
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
