package plan

import (
	"slices"

	"penstock.example/remat"
	"penstock.example/schedule"
)

// instant is the backward of a stage during which the most micro-batches are in flight on its
// worker.
type instant struct {
	flight []int  // by stage of the worker: other micro-batches in flight
	made   []bool // by stage: the gradients of weights exist
	most   int    // sum of both
}

// instants returns one instant for each stage of a worker.
func (p *space) instants(w int) []instant {
	stages := p.on[w]
	list := make([]instant, len(stages))
	flight, made, sum := make([]int, len(stages)), make([]bool, len(stages)), 0
	for _, a := range p.computations(w) {
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

// leastBytes returns a lower bound of the bytes that a worker needs for its stages, whatever it
// recomputes.  It is the greatest sum at a backward of each
// stage: weights, optimizer state, weight gradients made so far, inputs of micro-batches in flight,
// and the unit's own; and the sum at the end.
func (p *space) leastBytes(w int, c cut) int64 {
	list := make([]needs, len(p.on[w]))
	for k, s := range p.on[w] {
		for i := c[s]; i < c[s+1]; i++ {
			list[k].addUnit(p, c[s], i)
		}
	}
	return p.leastBytesOf(w, list)
}

// lacks returns by how much the least bytes of a worker's stages exceed its limit; 0 if they do not.
func (p *space) lacks(w int, list []needs) int64 {
	if limit := p.workers[w].bytes; limit > 0 {
		return max(0, p.leastBytesOf(w, list)-limit)
	}
	return 0
}

// leastBytesOf is leastBytes for the needs of each of the worker's stages.
func (p *space) leastBytesOf(w int, list []needs) int64 {
	stages := p.on[w]
	there, most := int64(0), int64(0)
	for k, s := range stages {
		there += int64(1+p.wishes.State)*list[k].weights + list[k].held
		most += list[k].weights // all gradients at the end
		if s == 0 {
			there += int64(p.m) * p.chain.Input
		}
	}
	for at, one := range p.oracle.instants[w] {
		bytes := list[at].input + list[at].backward
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

// Oversized returns a unit that no device has memory for, even alone and with one micro-batch, and
// the least bytes that it needs: of several such units the one that needs most. More devices then
// do not help. found is false if no unit is known to be too large; nothing is planned for this.
func (m Costs) Oversized(machine Machine, wishes Options) (unit int, bytes int64, found bool) {
	limit := machine.Largest(wishes.Limit)
	list, err := wishes.named()
	if err != nil || limit == 0 {
		return 0, 0, false
	}
	chains := []remat.Chain{m.Chain}
	if slices.ContainsFunc(list, func(s schedule.Schedule) bool { return s.Split }) {
		chains = append(chains, m.Chain.InParts())
	}
	for u := range m.Chain.Layers {
		least := int64(none)
		for _, c := range chains {
			p := &space{chain: c, held: m.Held}
			p.passes()
			var n needs
			n.addUnit(p, u, u)
			least = min(least, int64(1+wishes.State)*n.weights+n.held+max(n.weights, n.input+n.backward))
		}
		if least > max(limit, bytes) {
			unit, bytes, found = u, least, true
		}
	}
	return unit, bytes, found
}
