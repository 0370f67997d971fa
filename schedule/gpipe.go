package schedule

import (
	"cmp"
	"fmt"
	"slices"
)

// Config describes a GPipe program. Stages and MicroBatches must be positive; the rest may be zero.
type Config struct {
	Stages       int
	MicroBatches int

	// Recompute reports whether a stage's activations for a micro-batch are dropped after forward and computed
	// again before backward. Nil means never.
	Recompute func(stage, microBatch int) bool

	// Worker gives the worker of each stage. Several stages may share one; every worker from 0 to the highest has
	// at least one. Nil means a worker for each stage.
	Worker []int

	Phase Phase

	// Skips are the pairs of stages between which something moves directly, each from an earlier to a later stage.
	// Those of neighbours, which the ordinary transfers serve, and repetitions are ignored. The rest become
	// [Program.Skips].
	Skips []Edge

	// LateRecompute puts a recomputation behind the transfers of the gradients, directly before its backward, instead
	// of ahead of them: it serves to measure what running ahead gains. It becomes [Program.LateRecompute].
	LateRecompute bool
	// Unbuffered becomes [Program.Unbuffered]. Every stage needs a worker of its own then.
	Unbuffered bool

	// CopyWorkers gives every worker a second one for its transfers: with W workers, those to the stages of worker w
	// are on worker W+w, in the order in which they would be on w, and w holds computations only. A copy then
	// overlaps with computation, as copy streams let it on accelerators. A copy worker may have nothing to do.
	CopyWorkers bool
}

// GPipe returns the program that runs all forwards, then all backwards, both in ascending order of micro-batches.
// For 3 stages and 3 micro-batches, each stage on its own worker, time running right:
//
//	stage 0  F0 F1 F2 .  .  .  .  B0 B1 B2
//	stage 1  .  F0 F1 F2 .  .  B0 B1 B2 .
//	stage 2  .  .  F0 F1 F2 B0 B1 B2 .  .
//
// Transfers stand directly before the action that uses them, those from afar first, as they are the first that can
// start: with a skip from stage 0, stage 3 does 0>3F1 2>3F1 3F1, and stage 0 does 3>0B1 1>0B1 0B1. A recomputation
// stands before the transfers of the gradients, which it has no need to wait for: stage 1 does 1R1 2>1B1 1B1, and its
// 1R1 runs while stage 2 is still at 2B1. On the last stage it directly precedes its backward. With 2 micro-batches,
// the last two of 3 stages go backward like this, and like that with late recomputation:
//
//	ahead  stage 1  R0 .  B0 R1 B1    late  stage 1  .  .  R0 B0 R1 B1
//	       stage 2  R0 B0 R1 B1 .           stage 2  R0 B0 R1 B1 .  .
//
// With copy workers each list becomes two that keep its order. Of 2 stages the second goes forward like this, and like
// that with copy workers, where 0>1F1 need not wait for the end of 1F0:
//
//	worker 1  0>1F0 1F0 0>1F1 1F1        worker 1  1F0 1F1
//	                                     worker 3  0>1F0 0>1F1
//
// Transfers are listed also where both stages are on one worker.
//
// The program passes [Check]. Workers cannot deadlock: the list of each is a part of one order of all actions, which
// never puts an action before one that it depends on.
func GPipe(config Config) (*Program, error) {
	placement, err := config.placement()
	if err != nil {
		return nil, fmt.Errorf("schedule: GPipe: %w", err)
	}
	skips, err := config.skips()
	if err == nil {
		err = checkSize(config.Stages, len(skips), config.MicroBatches)
	}
	if err != nil {
		return nil, fmt.Errorf("schedule: GPipe: %w", err)
	}
	timed := config.timed(fanOf(skips))
	slices.SortFunc(timed, compareTimed)

	if config.Unbuffered && len(slices.Compact(slices.Sorted(slices.Values(placement)))) < config.Stages {
		return nil, fmt.Errorf("schedule: GPipe: %d stages on fewer workers: without buffers a stage would wait for itself; give each its own worker", config.Stages)
	}
	p := &Program{
		Stages: config.Stages, MicroBatches: config.MicroBatches, Phase: config.Phase,
		Skips: skips, LateRecompute: config.LateRecompute, Unbuffered: config.Unbuffered,
	}
	workers, copies := slices.Max(placement)+1, 0
	if config.CopyWorkers {
		copies = workers
	}
	p.Workers = make([][]Action, workers+copies)
	for _, t := range timed {
		w := placement[t.action.Stage]
		if t.action.Kind.Transfer() {
			w += copies
		}
		p.Workers[w] = append(p.Workers[w], t.action)
	}
	return p, nil
}

// placement validates the config and returns the worker of each stage.
func (c Config) placement() ([]int, error) {
	if err := checkSize(c.Stages, 0, c.MicroBatches); err != nil {
		return nil, err
	}
	if !c.Phase.forward() && !c.Phase.backward() {
		return nil, fmt.Errorf("unknown %v", c.Phase)
	}
	if c.Worker == nil {
		own := make([]int, c.Stages)
		for s := range own {
			own[s] = s
		}
		return own, nil
	}
	if len(c.Worker) != c.Stages {
		return nil, fmt.Errorf("workers are given for %d stages, want %d", len(c.Worker), c.Stages)
	}
	used := make([]bool, c.Stages)
	for s, w := range c.Worker {
		if w < 0 || w >= c.Stages {
			return nil, fmt.Errorf("stage %d is on worker %d, want 0 to %d", s, w, c.Stages-1)
		}
		used[w] = true
	}
	for w := range slices.Max(c.Worker) {
		if !used[w] {
			return nil, fmt.Errorf("worker %d has no stage, want workers without gaps", w)
		}
	}
	return c.Worker, nil
}

// timedAction is an action at its place in virtual time.
type timedAction struct {
	clock  int
	action Action
}

// timed lists all actions with the time at which they would start if every stage had a worker of its own,
// computations took one unit and transfers none. A recomputation ahead of the gradient starts as late as it can
// without delaying its backward, so that a worker with several stages does not hold graphs longer than it has to. A
// late one has the time of its backward, so that nothing comes between them.
func (c Config) timed(skips fan) []timedAction {
	var list []timedAction
	n, m := c.Stages, c.MicroBatches
	free := make([]int, n) // by stage: when its last computation so far has ended
	add := func(clock int, a Action) { list = append(list, timedAction{clock, a}) }
	if c.Phase.forward() {
		for i := range m {
			for s := range n {
				for _, from := range skips.from[s] {
					add(s+i, Action{Activation, s, i, from})
				}
				if s > 0 {
					add(s+i, Action{Activation, s, i, s - 1})
				}
				add(s+i, Action{Forward, s, i, 0})
				free[s] = s + i + 1
			}
		}
	}
	if !c.Phase.backward() {
		return list
	}
	for i := range m {
		for s := n - 1; s >= 0; s-- {
			recompute := c.Recompute != nil && c.Recompute(s, i)
			start := free[s] // of the backward and its transfers
			if recompute && !c.LateRecompute {
				start++
			}
			if s < n-1 {
				start = max(start, free[s+1])
				add(start, Action{Gradient, s, i, s + 1})
			}
			for _, to := range skips.to[s] {
				add(start, Action{Gradient, s, i, to})
			}
			free[s] = start + 1
			if recompute && c.LateRecompute {
				add(start, Action{Recompute, s, i, 0})
				free[s]++
			} else if recompute {
				add(start-1, Action{Recompute, s, i, 0})
			}
			add(start, Action{Backward, s, i, 0})
		}
	}
	return list
}

// compareTimed orders actions by time; the order never puts an action before one that it depends on, since a
// computation ends a unit or more after its start and a transfer goes before the computation that uses it. What is at
// the same time goes oldest micro-batch first, then last stage first: that leaves a recomputation behind the backward
// whose gradient it would have to wait for anyway.
func compareTimed(a, b timedAction) int {
	return cmp.Or(
		cmp.Compare(a.clock, b.clock),
		cmp.Compare(a.action.MicroBatch, b.action.MicroBatch),
		cmp.Compare(b.action.Stage, a.action.Stage),
		cmp.Compare(a.action.turn(), b.action.turn()),
	)
}

// turn orders the actions of a stage and a micro-batch that are at the same time: transfers from afar, those from
// the neighbour, a recomputation, what uses all of them.
func (a Action) turn() int {
	switch {
	case a.Kind.Transfer():
		return -a.distance()
	case a.Kind == Recompute:
		return 0
	}
	return 1
}
