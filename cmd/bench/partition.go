package main

import (
	"context"

	"penstock.example/balance"
	"penstock.example/planner"
	"penstock.example/profile"
	"penstock.example/torch"
)

// partitions gives a balance for each number of stages: even where all layers are, and else by the
// time that they are measured to take for a micro-batch.
func (w workload) partitions(ctx context.Context, repeats int, stages ...int) ([][]int, error) {
	var out [][]int
	if of, ok := perceptrons[w.Model]; ok {
		for _, n := range stages {
			var even []int
			for range n {
				even = append(even, 2*of.depth/n)
			}
			out = append(out, even)
		}
		return out, nil
	}
	model, err := w.build()
	if err != nil {
		return nil, err
	}
	s, err := w.shapes(w.Batch / int64(w.Chunks))
	if err != nil {
		return nil, err
	}
	c := torch.NewCtx(torch.Options{Seed: 7})
	defer c.Close()
	p, err := profile.Measure(ctx, model, profile.Config{MicroBatches: w.Chunks, Repeats: repeats}, s.input(c))
	if err != nil {
		return nil, err
	}
	for _, n := range stages {
		counts, _, err := balance.ByTime(p.Layers, n, balance.TimeConfig{
			Recomputed: []float64{planner.Policy(w.Checkpoint.String()).Recomputed(w.Chunks)}, SecondsPerByte: p.SecondsPerByte, Skips: p.Skips, Ties: p.Ties,
		})
		if err != nil {
			return nil, err
		}
		out = append(out, counts)
	}
	return out, nil
}
