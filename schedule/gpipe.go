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
}

// GPipe returns the program that runs all forwards, then all backwards, both in ascending order of micro-batches.
// For 3 stages and 3 micro-batches, each stage on its own worker, time running right:
//
//	stage 0  F0 F1 F2 .  .  .  .  B0 B1 B2
//	stage 1  .  F0 F1 F2 .  .  B0 B1 B2 .
//	stage 2  .  .  F0 F1 F2 B0 B1 B2 .  .
//
// A transfer stands directly before the action that uses it. A recomputation stands before the transfer of the
// gradient, which it has no need to wait for: stage 1 does 1R1 2>1B1 1B1, and its 1R1 runs while stage 2 is still
// at 2B1. On the last stage it directly precedes its backward.
//
// Transfers between consecutive stages are listed also where both stages are on one worker.
//
// The program passes [Check]. Workers cannot deadlock: the list of each is a part of one order of all actions, which
// never puts an action before one that it depends on.
func GPipe(config Config) (*Program, error) {
	placement, err := config.placement()
	if err != nil {
		return nil, fmt.Errorf("schedule: GPipe: %w", err)
	}
	timed := config.timed()
	slices.SortFunc(timed, compareTimed)

	p := &Program{Stages: config.Stages, MicroBatches: config.MicroBatches, Phase: config.Phase}
	p.Workers = make([][]Action, slices.Max(placement)+1)
	for _, t := range timed {
		w := placement[t.action.Stage]
		p.Workers[w] = append(p.Workers[w], t.action)
	}
	return p, nil
}

// placement validates the config and returns the worker of each stage.
func (c Config) placement() ([]int, error) {
	if err := checkSize(c.Stages, c.MicroBatches); err != nil {
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
// computations took one unit and transfers none. A recomputation starts as late as it can without delaying its
// backward, so that a worker with several stages does not hold graphs longer than it has to.
func (c Config) timed() []timedAction {
	var list []timedAction
	n, m := c.Stages, c.MicroBatches
	free := make([]int, n) // by stage: when its last computation so far has ended
	add := func(clock int, a Action) { list = append(list, timedAction{clock, a}) }
	if c.Phase.forward() {
		for i := range m {
			for s := range n {
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
			start := free[s]
			recompute := c.Recompute != nil && c.Recompute(s, i)
			if recompute {
				start++
			}
			if s < n-1 {
				start = max(start, free[s+1])
				add(start, Action{Gradient, s, i, s + 1})
			}
			if recompute {
				add(start-1, Action{Recompute, s, i, 0})
			}
			add(start, Action{Backward, s, i, 0})
			free[s] = start + 1
		}
	}
	return list
}

// compareTimed orders actions by time; the order never puts an action before one that it depends on, since a
// computation ends one unit after its start and a transfer goes before the computation that uses it. What is at the
// same time goes oldest micro-batch first, then last stage first: that leaves a recomputation behind the backward
// whose gradient it would have to wait for anyway.
func compareTimed(a, b timedAction) int {
	return cmp.Or(
		cmp.Compare(a.clock, b.clock),
		cmp.Compare(a.action.MicroBatch, b.action.MicroBatch),
		cmp.Compare(b.action.Stage, a.action.Stage),
		cmp.Compare(b.action.Kind, a.action.Kind), // transfers, the last kinds, go first
	)
}
