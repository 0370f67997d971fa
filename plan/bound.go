package plan

import (
	"slices"

	"penstock.example/schedule"
)

// workerOrder is the computations of a worker in the order of the program.
//
// One worker alone bounds a step: by the time before its first action upstream, its actions in
// their order, and the time downstream between a forward of its and a backward. The other workers
// do that at once, as if they had nothing else to do. With one stage on the worker and equal
// micro-batches the closed form is
//
//	U + m (f + b) + gaps + tail
//
// Gaps are between the forward on which the first, and the last, backward depends and that
// backward: the time D that all later stages take for a forward and a backward, less the time that
// the worker is busy meanwhile. For 1F1B they are max(0, D - w f) and max(0, D - w b), with w
// forwards before the first backward.
type workerOrder struct {
	list   []schedule.Action
	stages []int // of the worker, in order
	// after is, by micro-batch, the last forward that precedes its backward on the last stage.
	after []int
	// For a worker with one stage: its computations in each gap, whether the two gaps are disjoint,
	// and the number of second parts of backwards after the last first part.
	gaps     [2]gap
	apart    bool
	trailing int64
}

// gap is the number of computations of each kind in a gap.
type gap struct{ forward, backward, second int64 }

func (p *space) newOrder(w int) workerOrder {
	o := workerOrder{after: make([]int, p.m)}
	last := -1
	for _, a := range p.program.Workers[p.place[p.stages()-1]] {
		switch {
		case a.Stage < p.stages()-1:
		case a.Kind == schedule.Forward:
			last = a.MicroBatch
		case a.Kind == schedule.Backward || a.Kind == schedule.BackwardInput:
			o.after[a.MicroBatch] = last
		}
	}
	for _, a := range p.program.Workers[w] {
		if !a.Kind.Transfer() && a.Kind != schedule.Reduce {
			o.list = append(o.list, a)
		}
	}
	for s, on := range p.place {
		if on == w {
			o.stages = append(o.stages, s)
		}
	}
	if len(o.stages) > 1 {
		return o
	}
	var from, to [2]int
	for k, i := range []int{0, p.m - 1} {
		for at, a := range o.list {
			switch {
			case a.Kind == schedule.Forward && a.MicroBatch == o.after[i]:
				from[k] = at
			case (a.Kind == schedule.Backward || a.Kind == schedule.BackwardInput) && a.MicroBatch == i:
				to[k] = at
			}
		}
		for _, a := range o.list[from[k]+1 : to[k]] {
			o.gaps[k].count(a.Kind)
		}
	}
	o.apart = from[1] > to[0]
	for _, a := range o.list[to[1]+1:] {
		if a.Kind == schedule.BackwardWeight {
			o.trailing++
		}
	}
	return o
}

func (g *gap) count(kind schedule.Kind) {
	switch kind {
	case schedule.Forward:
		g.forward++
	case schedule.Backward:
		g.backward++
		g.second++
	case schedule.BackwardInput:
		g.backward++
	case schedule.BackwardWeight:
		g.second++
	}
}

// forwards returns prefix sums of the least times of forwards, at a class of speed.
func (p *space) forwards(class int) []int64 {
	if p.limited {
		return p.sums[class].least
	}
	return p.sums[class].forward
}

// backwards returns the time of backwards, or of their first parts, for units from i up to but not
// including j.
func (p *space) backwards(class, i, j int) int64 {
	a := &p.sums[class]
	if p.schedule.Split {
		return a.whole[j] - a.whole[i] - a.second[j] + a.second[i]
	}
	return a.whole[j] - a.whole[i]
}

// load returns the time of stage s with units from i up to but not including j for all
// micro-batches, without recomputation, after the first one's forwards on the stages before.
func (p *space) load(s, i, j int) int64 {
	class, before := p.workers[p.place[s]].class, int64(0)
	fs, bs := p.forwards(class), p.sums[class].whole
	if s > 0 {
		before = p.forwards(p.fast[s-1])[i]
	}
	return before + int64(p.m)*(fs[j]-fs[i]+bs[j]-bs[i])
}

// around is the least time of other stages before a stage, after it, and in between.
type around struct {
	before  int64 // forwards upstream
	after   int64 // backwards upstream
	between int64 // forwards and backwards downstream
}

// around is for stage s with units from i up to but not including j.
func (p *space) around(s, i, j int) (a around) {
	if s > 0 {
		class := p.fast[s-1]
		a.before = p.forwards(class)[i] + p.link[s-1].transferTime(p.sent[i])
		a.after = p.backwards(class, 0, i) + p.link[s-1].transferTime(p.y[i])
		for _, h := range p.link[:s] {
			a.before += int64(h.latency)
			a.after += int64(h.latency)
		}
	}
	if s < p.stages()-1 {
		class := p.slow[s+1]
		f := p.forwards(class)
		a.between = f[p.units] - f[j] + p.backwards(class, j, p.units) +
			p.link[s].transferTime(p.sent[j]) + p.link[s].transferTime(p.y[j])
		for _, h := range p.link[s:] {
			a.between += 2 * int64(h.latency)
		}
	}
	return a
}

// closedFormBound bounds a step in which stage s, the only one of its worker, has units from i up
// to but not including j.
func (p *space) closedFormBound(s, i, j int) int64 {
	o, own := &p.order[p.place[s]], p.sumsOf(s)
	a := p.around(s, i, j)
	fs := p.forwards(p.workers[p.place[s]].class)
	f, b, w := fs[j]-fs[i], p.backwards(p.workers[p.place[s]].class, i, j), int64(0)
	if p.schedule.Split {
		w = own.second[j] - own.second[i]
	}
	m := int64(p.m)
	idle := func(g gap) int64 { return max(0, a.between-g.forward*f-g.backward*b-g.second*w) }
	gaps := max(idle(o.gaps[0]), idle(o.gaps[1]))
	if o.apart {
		gaps = idle(o.gaps[0]) + idle(o.gaps[1])
	}
	out := a.before + m*(f+b+w) + gaps + max(0, a.after-o.trailing*w, p.reduction(s, i, j))
	if s < p.stages()-1 { // the link to the next stage carries all activations, then the last one goes on
		if h := p.link[s]; h != (linkCost{}) {
			out = max(out, a.before+f+(m-1)*h.transferTime(p.sent[j])+a.between+b+a.after,
				a.before+f+a.between+(m-1)*h.transferTime(p.y[j])+b+a.after)
		}
	}
	return out
}

// stageState is the state of a stage of the worker in bound.
type stageState struct {
	around
	from, to int // the worker's stages before and after; -1 is none
	enter    int64
	leave    int64
	forward  []int64 // by micro-batch: its end
	backward []int64
}

// bounding is scratch memory of bound.
type bounding struct {
	states []stageState // by stage
	ends   []int64
}

// bound bounds a step in which the stages of a worker, from unit first[s] up to but not including
// last[s], take these times. It is never below closedFormBound if they are the times without
// recomputation, and never above the simulated step.
func (p *space) bound(w int, first, last []int, times []stageTimes) (end int64) {
	o := &p.order[w]
	memory := &p.bounding
	memory.states = slices.Grow(memory.states[:0], p.stages())[:p.stages()]
	memory.ends = slices.Grow(memory.ends[:0], 2*p.m*len(o.stages))[:2*p.m*len(o.stages)]
	states, ends := memory.states, memory.ends
	fastest := p.fast[p.stages()-1]
	for k, s := range o.stages {
		t := stageState{around: p.around(s, first[s], last[s]), from: -1, to: -1,
			forward: ends[2*k*p.m:][:p.m], backward: ends[(2*k+1)*p.m:][:p.m]}
		t.enter = t.before
		if k > 0 {
			t.from = o.stages[k-1]
			t.enter = p.forwards(fastest)[first[s]] - p.forwards(fastest)[last[t.from]]
		}
		if k < len(o.stages)-1 {
			t.to = o.stages[k+1]
			t.leave = p.backwards(fastest, last[s], first[t.to])
		}
		states[s] = t
	}
	now := int64(0)
	for at := range o.list {
		a := &o.list[at]
		s, i := a.Stage, a.MicroBatch
		x, t := &states[s], &times[s]
		switch a.Kind {
		case schedule.Forward:
			takes, ready := t.forward, x.before
			if t.each != nil {
				takes = t.each[i].forward
			}
			if x.from >= 0 {
				ready = states[x.from].forward[i] + x.enter
			}
			now = max(now, ready) + takes
			x.forward[i] = now
		case schedule.Recompute:
			takes := t.recompute
			if t.each != nil {
				takes = t.each[i].recompute
			}
			now += takes
		case schedule.Backward, schedule.BackwardInput:
			takes, ready := t.backward, x.forward[o.after[i]]+x.between
			if t.each != nil {
				takes = t.each[i].backward
			}
			if a.Kind == schedule.Backward {
				takes += t.second
			}
			if x.to >= 0 {
				ready = max(ready, states[x.to].backward[i]+x.leave)
			}
			now = max(now, ready) + takes
			x.backward[i] = now
			end = max(end, now+x.around.after)
		case schedule.BackwardWeight:
			now += t.second
		}
	}
	return max(end, now)
}
