package schedule

import (
	"cmp"
	"slices"
	"time"
)

// lister makes an order by list scheduling.
type lister struct {
	Costs
	config Config
	most   []int64
	eager  float64  // gradients of weights are made if so much of their time fits into a gap
	follow [][]step // by worker: forwards and backwards that are left, in order; nil is any order

	worker []int   // by stage
	stages [][]int // by worker
	skips  fan
	order  order
	free   []time.Duration // by worker
	held   []int64         // by worker
	known  []choice        // by worker: what it does next
	stale  []bool          // by worker: known may have changed
	next   [][3]int        // by stage: the next micro-batch to go forward, backward, and to have gradients of weights
	ends   [2][]time.Duration
}

func newLister(k Costs, c Config, placement []int, follow [][]Action, most []int64, eager float64) *lister {
	workers := slices.Max(placement) + 1
	l := &lister{Costs: k, config: c, most: most, eager: eager, worker: placement, stages: make([][]int, workers), order: make(order, workers),
		known: make([]choice, workers), stale: slices.Repeat([]bool{true}, workers), free: make([]time.Duration, workers), held: make([]int64, workers), next: make([][3]int, c.Stages)}
	for s, w := range placement {
		l.stages[w] = append(l.stages[w], s)
	}
	for _, actions := range follow {
		var list []step
		for _, a := range actions {
			switch {
			case a.Kind == Forward:
				list = append(list, step{Forward, a.Stage, a.MicroBatch})
			case a.Kind.gradients():
				list = append(list, step{Backward, a.Stage, a.MicroBatch})
			}
		}
		l.follow = append(l.follow, list)
	}
	skips, _ := c.skips() // checked
	l.skips = fanOf(skips)
	for way := range l.ends {
		l.ends[way] = make([]time.Duration, c.Stages*c.MicroBatches)
		for i := range l.ends[way] {
			l.ends[way][i] = -1
		}
	}
	return l
}

// list orders all computations. It reports whether it did: within its bounds it may come to where
// no worker has memory for what others wait for.
func (l *lister) list() bool {
	for {
		// The computation that can start first of all is the next one; what others do later cannot
		// come before it.
		var best choice
		for w := range l.stages {
			if l.stale[w] {
				l.known[w], l.stale[w] = l.choose(w), false
			}
			if found := l.known[w]; found.kind != 0 && (best.kind == 0 || found.start < best.start) {
				best = found
			}
		}
		if best.kind == 0 {
			break
		}
		l.perform(best)
	}
	for _, next := range l.next {
		if next[1] < l.config.MicroBatches || l.Split && next[2] < l.config.MicroBatches {
			return false
		}
	}
	return true
}

// choice is a computation that a worker could do next.
type choice struct {
	kind          Kind
	worker, stage int
	microBatch    int
	start, takes  time.Duration
}

// choose returns what a worker does next, of no kind if it has nothing that it can do.
func (l *lister) choose(w int) choice {
	var urgent, filler choice // what others wait for; gradients of weights
	switch {
	case l.follow == nil:
		for at, s := range l.stages[w] {
			for _, c := range []choice{l.backward(w, s), l.forward(w, s, l.stages[w][at+1:])} {
				if c.kind != 0 && (urgent.kind == 0 || before(c, urgent)) {
					urgent = c
				}
			}
		}
	case len(l.follow[w]) > 0:
		if next := l.follow[w][0]; next.kind == Forward {
			urgent = l.forward(w, next.chunk, nil)
		} else {
			urgent = l.backward(w, next.chunk)
		}
	}
	for _, s := range l.stages[w] {
		if c := l.weight(w, s); c.kind != 0 && (filler.kind == 0 || c.microBatch < filler.microBatch) {
			filler = c
		}
	}
	if filler.kind != 0 {
		if gap := urgent.start - filler.start; urgent.kind == 0 || gap > 0 && float64(gap) >= l.eager*float64(filler.takes) {
			return filler
		}
	}
	return urgent
}

// before reports whether a computation comes before another of the same worker: it can start
// earlier, or it frees memory, or it is of a later stage.
func before(a, b choice) bool {
	return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(b.kind, a.kind), cmp.Compare(b.stage, a.stage), cmp.Compare(a.microBatch, b.microBatch)) < 0
}

// ended is when the forward, or the backward, of a stage on a micro-batch has ended, or -1.
func (l *lister) ended(way, stage, microBatch int) time.Duration {
	return l.ends[way][stage*l.config.MicroBatches+microBatch]
}

// after is the latest of a start and the ends of other stages' computations; -1 if one of these has
// not been done.
func (l *lister) after(start time.Duration, way, microBatch int, stages ...int) time.Duration {
	for _, s := range stages {
		end := l.ended(way, s, microBatch)
		if end < 0 {
			return -1
		}
		start = max(start, end)
	}
	return start
}

// fits reports whether a worker has memory for so many bytes more.
func (l *lister) fits(w int, bytes int64) bool { return l.held[w]+bytes <= l.most[w] }

// forward returns the next forward of a stage, if it can be done with memory to spare for one more
// on each of some other stages of its worker.
func (l *lister) forward(w, s int, spare []int) choice {
	i := l.next[s][0]
	if i == l.config.MicroBatches {
		return choice{}
	}
	kept := whole
	if l.config.recomputes(s, i) {
		kept = input
	}
	start := l.after(l.free[w], 0, i, l.skips.from[s]...)
	if s > 0 && start >= 0 {
		start = l.after(start, 0, i, s-1)
	}
	need := l.of(kept, s)
	for _, other := range spare {
		if l.next[other][0] < l.config.MicroBatches {
			need += l.of(whole, other)
		}
	}
	if start < 0 || !l.fits(w, need) {
		return choice{}
	}
	return choice{Forward, w, s, i, start, l.Time(Action{Forward, s, i, 0})}
}

func (l *lister) backward(w, s int) choice {
	i := l.next[s][1]
	if i == l.next[s][0] {
		return choice{}
	}
	start := l.after(l.free[w], 1, i, l.skips.to[s]...)
	if s < l.config.Stages-1 && start >= 0 {
		start = l.after(start, 1, i, s+1)
	}
	if start < 0 {
		return choice{}
	}
	kind := Backward
	if l.Split {
		kind = BackwardInput
	}
	now, most := l.of(whole, s), l.of(whole, s)
	if l.config.recomputes(s, i) {
		now = l.of(input, s)
	}
	if l.Split {
		most = max(most, l.of(weights, s))
	}
	if !l.fits(w, most-now) {
		return choice{}
	}
	takes := l.Time(Action{kind, s, i, 0})
	if l.config.recomputes(s, i) {
		again := l.Time(Action{Recompute, s, i, 0})
		start = max(l.free[w], start-again) // it needs no gradient
		takes += again
	}
	return choice{kind, w, s, i, start, takes}
}

func (l *lister) weight(w, s int) choice {
	i := l.next[s][2]
	if !l.Split || i == l.next[s][1] {
		return choice{}
	}
	return choice{BackwardWeight, w, s, i, l.free[w], l.Time(Action{BackwardWeight, s, i, 0})}
}

// perform appends a computation to its worker's list.
func (l *lister) perform(c choice) {
	w, s, i := c.worker, c.stage, c.microBatch
	end := c.start + c.takes
	again := l.config.recomputes(s, i)
	switch c.kind {
	case Forward:
		l.next[s][0]++
		l.ends[0][s*l.config.MicroBatches+i] = end
		kept := whole
		if again {
			kept = input
		}
		l.held[w] += l.of(kept, s)
	case BackwardWeight:
		l.next[s][2]++
		l.held[w] -= l.of(weights, s)
	default:
		l.next[s][1]++
		l.ends[1][s*l.config.MicroBatches+i] = end
		if again {
			l.order[w] = append(l.order[w], Action{Recompute, s, i, 0})
			l.held[w] -= l.of(input, s)
		} else {
			l.held[w] -= l.of(whole, s)
		}
		if c.kind == BackwardInput {
			l.held[w] += l.of(weights, s)
		}
	}
	if l.follow != nil && c.kind != BackwardWeight {
		l.follow[w] = l.follow[w][1:]
	}
	l.order[w] = append(l.order[w], Action{c.kind, s, i, 0})
	l.free[w] = end
	l.stale[w] = true
	for _, other := range [][]int{l.skips.from[s], l.skips.to[s], {max(s-1, 0), min(s+1, l.config.Stages-1)}} {
		for _, t := range other {
			l.stale[l.worker[t]] = true
		}
	}
}
