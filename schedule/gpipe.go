package schedule

import (
	"cmp"
	"fmt"
	"slices"
)

// GPipe returns the program that runs all forwards, then all backwards, both in ascending order of
// micro-batches. For 3 stages and 3 micro-batches, each stage on its own worker, time running
// right:
//
//	stage 0  F0 F1 F2 .  .  .  .  B0 B1 B2
//	stage 1  .  F0 F1 F2 .  .  B0 B1 B2 .
//	stage 2  .  .  F0 F1 F2 B0 B1 B2 .  .
//
// A send directly follows the action that made its value, to the neighbour first, which wants it
// first. A receive stands directly before the action that uses its value, receives from afar first,
// as they can start first: with a skip from stage 0, stage 3 does 0>3F1 2>3F1 3F1, and stage 0 does
// 3>0B1 1>0B1 0B1. A recomputation stands before the receives of the gradients, which it has no
// need to wait for: stage 1 does 1R1 2>1B1 1B1, and its 1R1 runs while stage 2 is still at 2B1. On
// the last stage it directly precedes its backward. With 2 micro-batches, the last two of 3 stages
// go backward like this:
//
//	stage 1  R0 .  B0 R1 B1
//	stage 2  R0 B0 R1 B1 .
//
// Sends and receives are listed also where both stages are on one worker.
//
// The program passes [Check]. Workers cannot deadlock while links hold any number of values: the
// list of each is a part of one order of all actions, in which every action follows its
// dependencies. With stages on workers of their own they cannot deadlock on links that hold fewer
// either, nor where all links meet ([Limits]). Where workers have several stages and would
// deadlock, a receive stands earlier ([Generator]).
//
// The pipeline is idle for P - 1 of M + P - 1 steps on P workers of one stage each, and every stage
// holds all M micro-batches (Huang et al., 2019, arXiv:1811.06965, section 2.3).
func GPipe(config Config) (*Program, error) {
	p, placement, err := config.program()
	if err != nil {
		return nil, fmt.Errorf("schedule: GPipe: %w", err)
	}
	timed := make([][]timedAction, len(p.Workers))
	for _, t := range config.timed() {
		w := placement[t.action.Stage]
		timed[w] = append(timed[w], t)
	}
	order := make(order, len(p.Workers))
	for w, list := range timed {
		slices.SortFunc(list, compareTimed)
		for _, t := range list {
			order[w] = append(order[w], t.action)
		}
	}
	p.fill(order)
	p.meet(config.time())
	return p, nil
}

// timedAction is a computation at its place in virtual time.
type timedAction struct {
	clock  int
	action Action
}

// timed lists all computations with the time at which they would start if every stage had a worker
// of its own and each took one unit. A recomputation starts as late as it can without delaying its
// backward, so that a worker with several stages does not hold graphs longer than it has to.
func (c Config) timed() []timedAction {
	var list []timedAction
	n, m := c.Stages, c.MicroBatches
	free := make([]int, n) // by stage: when its last computation so far has ended
	for i := range m {
		for s := range n {
			list = append(list, timedAction{s + i, Action{Forward, s, i, 0}})
			free[s] = s + i + 1
		}
	}
	for i := range m {
		for s := n - 1; s >= 0; s-- {
			start := free[s] // of the backward
			if c.recomputes(s, i) {
				start++
			}
			if s < n-1 {
				start = max(start, free[s+1])
			}
			free[s] = start + 1
			if c.recomputes(s, i) {
				list = append(list, timedAction{start - 1, Action{Recompute, s, i, 0}})
			}
			list = append(list, timedAction{start, Action{Backward, s, i, 0}})
		}
	}
	return list
}

// compareTimed orders computations by time. So each follows its dependencies, since it ends a unit
// or more after its start. At the same time the oldest micro-batch goes first, then the last stage:
// a recomputation then stands after the backward with the gradient that it would wait for anyway.
func compareTimed(a, b timedAction) int {
	return cmp.Or(
		cmp.Compare(a.clock, b.clock),
		cmp.Compare(a.action.MicroBatch, b.action.MicroBatch),
		cmp.Compare(b.action.Stage, a.action.Stage),
	)
}
