package schedule

import (
	"cmp"
	"fmt"
	"slices"
)

// Generator makes the program of a schedule. It is deterministic, and what it returns passes [Check].
type Generator func(Config) (*Program, error)

// Config describes the program that a [Generator] is to make. Stages and MicroBatches must be positive; the rest may be zero.
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
	// Those of neighbours, which have a link anyway, and repetitions are ignored. The rest become [Program.Skips].
	Skips []Edge

	// Capacity becomes [Program.Capacity]. Stages that share a worker with others need 0: with less, a worker could wait
	// for itself.
	Capacity int
}

// GPipe returns the program that runs all forwards, then all backwards, both in ascending order of micro-batches.
// For 3 stages and 3 micro-batches, each stage on its own worker, time running right:
//
//	stage 0  F0 F1 F2 .  .  .  .  B0 B1 B2
//	stage 1  .  F0 F1 F2 .  .  B0 B1 B2 .
//	stage 2  .  .  F0 F1 F2 B0 B1 B2 .  .
//
// A send directly follows the action that made what is sent, to the neighbour first, which is the first to want it. A
// receive stands directly before the action that uses what is received, those from afar first, as they are the first
// that can start: with a skip from stage 0, stage 3 does 0>3F1 2>3F1 3F1, and stage 0 does 3>0B1 1>0B1 0B1. A
// recomputation stands before the receives of the gradients, which it has no need to wait for: stage 1 does 1R1 2>1B1
// 1B1, and its 1R1 runs while stage 2 is still at 2B1. On the last stage it directly precedes its backward. With 2
// micro-batches, the last two of 3 stages go backward like this:
//
//	stage 1  R0 .  B0 R1 B1
//	stage 2  R0 B0 R1 B1 .
//
// Sends and receives are listed also where both stages are on one worker.
//
// The program passes [Check]. Workers cannot deadlock while links hold any number of values: the list of each is a part
// of one order of all actions, which never puts an action before one that it depends on. With stages on workers of
// their own they cannot deadlock on links that hold fewer either, nor where all links meet ([Limits]).
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
	workers := slices.Max(placement) + 1
	switch {
	case config.Capacity < Meet:
		return nil, fmt.Errorf("schedule: GPipe: a capacity of %d values on a link, want 0 for any number, %d for none, or 1 and more", config.Capacity, Meet)
	case config.Capacity != 0 && workers < config.Stages:
		return nil, fmt.Errorf("schedule: GPipe: %d stages on %d workers with links of limited capacity: a worker could wait for itself; give each stage its own", config.Stages, workers)
	}
	timed := config.timed(fanOf(skips))
	slices.SortFunc(timed, compareTimed)
	p := &Program{
		Stages: config.Stages, MicroBatches: config.MicroBatches, Phase: config.Phase,
		Skips: skips, Capacity: config.Capacity, Workers: make([][]Action, workers),
	}
	for _, t := range timed {
		w := placement[t.action.Stage]
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
// computations took one unit and transfers none. A send has the time of the computation before it, a receive that of
// the one after it. A recomputation starts as late as it can without delaying its backward, so that a worker with
// several stages does not hold graphs longer than it has to.
func (c Config) timed(skips fan) []timedAction {
	var list []timedAction
	n, m := c.Stages, c.MicroBatches
	free := make([]int, n) // by stage: when its last computation so far has ended
	add := func(clock int, a Action) { list = append(list, timedAction{clock, a}) }
	// transfers adds those of a computation: what it needs received, what it makes sent.
	transfers := func(clock, stage, microBatch int, receive, send Kind, before, after int, from, to []int) {
		for _, peer := range from {
			add(clock, Action{receive, stage, microBatch, peer})
		}
		if before >= 0 && before < n {
			add(clock, Action{receive, stage, microBatch, before})
		}
		if after >= 0 && after < n {
			add(clock, Action{send, stage, microBatch, after})
		}
		for _, peer := range to {
			add(clock, Action{send, stage, microBatch, peer})
		}
	}
	if c.Phase.forward() {
		for i := range m {
			for s := range n {
				transfers(s+i, s, i, ReceiveActivation, SendActivation, s-1, s+1, skips.from[s], skips.to[s])
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
			if recompute {
				start++
			}
			if s < n-1 {
				start = max(start, free[s+1])
			}
			transfers(start, s, i, ReceiveGradient, SendGradient, s+1, s-1, skips.to[s], skips.from[s])
			free[s] = start + 1
			if recompute {
				add(start-1, Action{Recompute, s, i, 0})
			}
			add(start, Action{Backward, s, i, 0})
		}
	}
	return list
}

// compareTimed orders actions by time; the order never puts an action before one that it depends on, since a
// computation ends a unit or more after its start, receives go before the computation that uses them and sends after
// the one before them. What is at the same time goes oldest micro-batch first, then last stage first: that leaves a
// recomputation after the backward whose gradient it would have to wait for anyway.
func compareTimed(a, b timedAction) int {
	return cmp.Or(
		cmp.Compare(a.clock, b.clock),
		cmp.Compare(a.action.MicroBatch, b.action.MicroBatch),
		cmp.Compare(b.action.Stage, a.action.Stage),
		cmp.Compare(a.action.turn(), b.action.turn()),
	)
}

// turn orders the actions of a stage and a micro-batch that are at the same time: receives from afar, that from the
// neighbour, the computation, the send to the neighbour, those to afar.
func (a Action) turn() int {
	switch {
	case a.Kind.Receive():
		return -a.distance()
	case a.Kind.Send():
		return a.distance()
	}
	return 0
}
