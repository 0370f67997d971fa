package schedule

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"penstock/internal/arg"
)

// Costs are what the computations of a program take, as they were measured.
type Costs struct {
	// Time is how long an action takes. Transfers take no time that a worker could use otherwise.
	Time func(Action) time.Duration
	// Split says that backwards may be in two parts.
	Split bool
	// Whole and Weights are the bytes that a stage holds of a micro-batch: from its forward, or its recomputation, to the
	// end of its backward or of the first part of that, and from there to the end of the second. Input is what it holds
	// from forward to recomputation. By stage; nil is one byte for Whole and for Weights, and none for Input.
	Whole, Weights, Input []int64
	// Limit is the most bytes that the stages of each worker may hold of all micro-batches; nil is no limit.
	Limit []int64
}

// Auto returns a generator that orders computations by their costs: of all schedules that have a name, that suit the
// placement and that keep the limits, and of several that it makes itself, the one that takes the least time with a barrier
// at the end of the step. So it is never slower than the best of those that have a name.
//
// Its own are made by list scheduling: the worker that can start something first does so. Gradients of weights, for which
// nobody waits, fill the time up to what comes next, or are made where there is no memory for more (as in Qi et al., 2023,
// arXiv:2401.10241, section 3). What comes next is what one of the schedules with a name does next, forwards and backwards
// in its order; or what can start first, backwards before forwards, with memory kept for the worker's later stages. All
// of these are tried, with gaps filled more and less eagerly, and with less memory than there may be. Programs of more
// than 65,536 forwards are not made but by name.
//
// The generator fails if nothing keeps the limits.
func Auto(costs Costs) Generator {
	return func(c Config) (*Program, error) {
		p, err := costs.best(c)
		if err != nil {
			return nil, fmt.Errorf("schedule: auto: %w", err)
		}
		return p, nil
	}
}

// best returns the fastest program that keeps the limits.
func (k Costs) best(c Config) (*Program, error) {
	made, placement, err := c.program()
	if err != nil {
		return nil, err
	}
	if err := k.check(c.Stages, len(made.Workers)); err != nil {
		return nil, err
	}
	var best *Program
	least := time.Duration(math.MaxInt64)
	consider := func(p *Program) error {
		if !k.keeps(p) {
			return nil
		}
		took, _, err := Predict(p, k.Time)
		if err == nil && took < least {
			best, least = p, took
		}
		return err
	}
	orders := [][][]Action{nil} // that lists follow, or none
	for _, s := range Schedules() {
		p, err := s.Generate(c)
		if err != nil {
			continue // it is for another placement
		}
		orders = append(orders, p.Workers)
		if s.Split && !k.Split {
			continue
		}
		if err := consider(p); err != nil {
			return nil, err
		}
	}
	const most = 1 << 16
	if c.Stages*c.MicroBatches > most {
		orders = nil
	}
	for _, order := range orders {
		for _, bound := range k.bounds(c, len(made.Workers)) {
			for _, eager := range []float64{0, 0.5, 1} {
				l := newLister(k, c, placement, order, bound, eager)
				if !l.list() {
					continue
				}
				p := *made
				p.Workers = make([][]Action, len(made.Workers))
				p.fill(l.order)
				p.meet(k.Time)
				if err := consider(&p); err != nil {
					return nil, err
				}
			}
		}
	}
	if best == nil {
		return nil, errors.New("no schedule keeps the limits; raise them, or recompute more")
	}
	return best, nil
}

// check says what is wrong with costs for so many stages and workers.
func (k Costs) check(stages, workers int) error {
	if k.Time == nil {
		return errors.New("the function of times is nil; want one such as Unit")
	}
	for _, list := range []struct {
		name   string
		bytes  []int64
		length int
	}{{"Whole", k.Whole, stages}, {"Weights", k.Weights, stages}, {"Input", k.Input, stages}, {"Limit", k.Limit, workers}} {
		if list.bytes != nil && len(list.bytes) != list.length {
			return fmt.Errorf("%s is given %d times, want %d", list.name, len(list.bytes), list.length)
		}
		for i, n := range list.bytes {
			if n < 0 {
				return fmt.Errorf("%s %d is %d bytes, want 0 or more", list.name, i, n)
			}
		}
	}
	return nil
}

// of returns the bytes of a micro-batch that a stage holds in some way.
func (k Costs) of(h hold, stage int) int64 {
	list, otherwise := k.Input, int64(0)
	switch h {
	case nothing:
		return 0
	case whole:
		list, otherwise = k.Whole, 1
	case weights:
		list, otherwise = k.Weights, 1
	}
	if list == nil {
		return otherwise
	}
	return list[stage]
}

// Held returns the most bytes that the stages of each worker hold together. The costs must be for as many stages.
func (k Costs) Held(p *Program) []int64 {
	arg.Must(p, "schedule: Held: the program", "one such as GPipe or Parse makes")
	held, most := make([]int64, len(p.Workers)), make([]int64, len(p.Workers))
	p.follow(func(w, stage int, was, is hold) {
		held[w] += k.of(is, stage) - k.of(was, stage)
		most[w] = max(most[w], held[w])
	})
	return most
}

// keeps reports whether no worker of a program holds more than it may.
func (k Costs) keeps(p *Program) bool {
	if k.Limit == nil {
		return true
	}
	for w, held := range k.Held(p) {
		if held > k.Limit[w] {
			return false
		}
	}
	return true
}

// bounds lists what the workers may hold at most: their limits, and less, so that a forward does not come long before its
// backward. Without limits these are multiples of what 1F1B holds.
func (k Costs) bounds(c Config, workers int) [][]int64 {
	var out [][]int64
	for _, times := range []int64{1, 2, 3, 4} {
		bound := make([]int64, workers)
		for w := range bound {
			var all, largest int64
			for s := range c.Stages {
				if c.Worker == nil && s == w || c.Worker != nil && c.Worker[s] == w {
					all += max(k.of(whole, s), k.of(weights, s))
					largest = max(largest, k.of(whole, s), k.of(weights, s))
				}
			}
			bound[w] = all*int64(workers)*times/2 + largest
			if k.Limit != nil {
				bound[w] = min(bound[w], k.Limit[w])
			}
		}
		out = append(out, bound)
	}
	if k.Limit != nil {
		out = append(out, k.Limit)
	}
	slices.SortFunc(out, slices.Compare)
	return slices.CompactFunc(out, slices.Equal)
}

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
	next   [][3]int        // by stage: the next micro-batch to go forward, backward, and to have gradients of weights
	ends   [2][]time.Duration
}

func newLister(k Costs, c Config, placement []int, follow [][]Action, most []int64, eager float64) *lister {
	workers := slices.Max(placement) + 1
	l := &lister{Costs: k, config: c, most: most, eager: eager, worker: placement, stages: make([][]int, workers), order: make(order, workers),
		free: make([]time.Duration, workers), held: make([]int64, workers), next: make([][3]int, c.Stages)}
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

// list orders all computations. It reports whether it did: within its bounds it may come to where no worker has memory for
// what others wait for.
func (l *lister) list() bool {
	for {
		// The computation that can start first of all is the next one; what others do later cannot come before it.
		var best choice
		for w := range l.stages {
			if found, ok := l.choose(w); ok && (best.kind == 0 || found.start < best.start) {
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

// choose returns what a worker does next.
func (l *lister) choose(w int) (choice, bool) {
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
			return filler, true
		}
	}
	return urgent, urgent.kind != 0
}

// before reports whether a computation comes before another of the same worker: it can start earlier, or it frees memory, or
// it is of a later stage.
func before(a, b choice) bool {
	return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(b.kind, a.kind), cmp.Compare(b.stage, a.stage), cmp.Compare(a.microBatch, b.microBatch)) < 0
}

// ended is when the forward, or the backward, of a stage on a micro-batch has ended, or -1.
func (l *lister) ended(way, stage, microBatch int) time.Duration {
	return l.ends[way][stage*l.config.MicroBatches+microBatch]
}

// after is the latest of a start and the ends of other stages' computations; -1 if one of these has not been done.
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

// forward returns the next forward of a stage, if it can be done with memory to spare for one more on each of some other
// stages of its worker.
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
}
