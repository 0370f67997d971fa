package main

import (
	"context"
	"fmt"
	"slices"

	"penstock/planner"
	"penstock/remat"
	"penstock/schedule"
)

// chainPeaks is the most bytes that each device holds in a step of a program whose stages are so many
// layers of a chain each, if nothing is recomputed. It blocks until it is known, or fails with
// ctx.Err().
//
// Of what a chain does not say, weights are as large as their gradients, a micro-batch after the first
// takes what the first does but for the gradients, and the first part of a backward in two leaves to
// the second the inputs of layers that have weights, and the gradients of their outputs.
func chainPeaks(ctx context.Context, chain *remat.Chain, counts []int, p *schedule.Program) ([]int64, error) {
	problem := planner.Problem{MicroBatches: p.MicroBatches, Schedule: schedule.Fixed(p)}
	for w := range p.Workers {
		problem.Devices = append(problem.Devices, planner.Device{Name: fmt.Sprint("device ", w)})
	}
	first := 0
	for stage, worker := range p.Placement() {
		last := first + counts[stage]
		// Without a limit a plan keeps everything.
		s := planner.Stage{Device: worker, Layers: counts[stage], Policy: planner.Optimal, Costs: stageCosts(chain, first, last)}
		for _, l := range s.Costs.First.Layers {
			s.Memory.Unplaced += l.WeightGradient
		}
		if stage == 0 {
			s.Memory.BatchInput = true
			problem.Devices[worker].Live = int64(p.MicroBatches) * chain.Input
		}
		problem.Stages = append(problem.Stages, s)
		first = last
	}
	plan, err := planner.Solve(ctx, problem)
	if err != nil {
		return nil, err
	}
	var out []int64
	for _, d := range plan.Devices {
		out = append(out, d.Peak)
	}
	return out, nil
}

// stageCosts are those of a stage of a chain, from layer first up to but not including last.
func stageCosts(chain *remat.Chain, first, last int) (out planner.Costs) {
	c := chain.Part(first, last)
	if last < len(chain.Layers) { // a stage holds its output until its backward ends
		l := &c.Layers[len(c.Layers)-1]
		l.BackwardEarly = max(l.BackwardEarly-l.Output, 0)
	}
	out.First, out.Later = c, c
	out.Later.Layers = slices.Clone(c.Layers)
	for i := range out.Later.Layers {
		out.Later.Layers[i].WeightGradient = 0
	}
	out.Split, out.SplitLater = out.First, out.Later
	for range c.Layers {
		out.Units = append(out.Units, 1)
	}
	return out
}
