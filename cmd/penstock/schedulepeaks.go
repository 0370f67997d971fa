package main

import (
	"context"

	"penstock.example/planner"
	"penstock.example/remat"
	"penstock.example/schedule"
)

// chainPeaks is the most bytes that each device holds in a step of a program whose stages are so many
// layers of a chain each, if nothing is recomputed (see planner.FromChain). It blocks until it is known,
// or fails with ctx.Err().
func chainPeaks(ctx context.Context, chain *remat.Chain, counts []int, p *schedule.Program) ([]int64, error) {
	problem := planner.FromChain(*chain, counts, p.Placement(), p.MicroBatches)
	problem.Schedule = schedule.Fixed(p)
	plan, err := planner.Solve(ctx, problem) // without a limit it keeps everything
	if err != nil {
		return nil, err
	}
	var out []int64
	for _, d := range plan.Devices {
		out = append(out, d.Peak)
	}
	return out, nil
}
