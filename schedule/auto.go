package schedule

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"penstock.example/internal/arg"
)

// Costs are what the computations of a program take, as they were measured.
type Costs struct {
	// Time is how long an action takes; nil is [Config.Measured], or [Config.Time] where that is nil.
	Time func(Action) time.Duration
	// Links is what transfers between workers cost. Lists are made as if they cost nothing, and of
	// all programs the one is chosen that takes least with them.
	Links Links
	// Split says that backwards may be in two parts.
	Split bool
	// Whole and Weights are the bytes that a stage holds of a micro-batch: from its forward, or its
	// recomputation, to the end of its backward or of the first part of that, and from there to the
	// end of the second. Input is what it holds from forward to recomputation. By stage; nil is one
	// byte for Whole and for Weights, and none for Input.
	Whole, Weights, Input []int64
	// Limit is the most bytes that the stages of each worker may hold of all micro-batches; nil is
	// no limit. Soft says that this is an estimate: where nothing keeps the limits they are raised,
	// by an eighth at a time, until something does.
	Limit []int64
	Soft  bool
	// Spare says of which stages recomputations are taken out of the program afterwards where
	// memory does without them. They do not count if the limits are kept without any, and all of
	// them count otherwise. Nil is none.
	Spare func(stage int) bool
}

// Auto returns a generator that orders computations by their costs: of all schedules that have a
// name, that suit the placement and that keep the limits, and of several that it makes itself, the
// one that takes the least time with a barrier at the end of the step. So it is never slower than
// the best of those that have a name.
//
// Its own are made by list scheduling: the worker that can start something first does so. Gradients
// of weights, for which nobody waits, fill the time up to what comes next, or are made where there
// is no memory for more (as in Qi et al., 2023, arXiv:2401.10241, section 3). What comes next is
// what one of the schedules with a name does next, forwards and backwards in its order; or what can
// start first, backwards before forwards, with memory kept for the worker's later stages. All of
// these are tried, with gaps filled more and less eagerly, and with less memory than there may be.
// Programs of more than 16,384 forwards are not made but by name.
//
// The generator fails if nothing keeps the limits, unless they are soft.
func Auto(costs Costs) Generator {
	return func(c Config) (*Program, error) {
		costs := costs
		if costs.Time == nil {
			costs.Time = c.Measured
		}
		if costs.Time == nil {
			costs.Time = c.time()
		}
		p, err := costs.spared(c)
		if err != nil {
			return nil, fmt.Errorf("schedule: auto: %w", err)
		}
		return p, nil
	}
}

// errLimits says that no program keeps the limits.
var errLimits = errors.New("no schedule keeps the limits; raise them, or recompute more")

// spared returns the fastest program, of which some recomputations may be taken out.
func (k Costs) spared(c Config) (*Program, error) {
	if k.Spare != nil {
		bare := c
		bare.Recompute = func(stage, microBatch int) bool { return !k.Spare(stage) && c.recomputes(stage, microBatch) }
		if p, err := k.best(bare); err == nil {
			return p.adapted(c)
		}
	}
	p, err := k.best(c)
	for k.Soft && errors.Is(err, errLimits) {
		k.Limit = slices.Clone(k.Limit)
		for w := range k.Limit {
			k.Limit[w] += k.Limit[w]/8 + 1
		}
		p, err = k.best(c)
	}
	return p, err
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
		took, _, err := k.Links.Predict(p, k.Time)
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
		// Receives that suit the times are better where links hold any number of values, and may be
		// worse elsewhere.
		timed := c
		timed.Time = k.Time
		if p, err = s.Generate(timed); err == nil {
			err = consider(p)
		}
		if err != nil {
			return nil, err
		}
	}
	const most = 1 << 14
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
		return nil, errLimits
	}
	return best, nil
}

// check says what is wrong with costs for so many stages and workers.
func (k Costs) check(stages, workers int) error {
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

// Held returns the most bytes that the stages of each worker hold together. The costs must be for
// as many stages.
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

// bounds lists what the workers may hold at most: their limits, and less, so that a forward does
// not come long before its backward. Without limits these are multiples of what 1F1B holds.
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
