package main

import (
	"context"
	"slices"
	"testing"

	"penstock.example/remat"

	"penstock.example/remat/solver"
)

// TestRandomChains: they are what rotor's experiments are of, and the same in every run.
func TestRandomChains(t *testing.T) {
	for _, layers := range []int{1, 50, 339} {
		c := randomChain(layers, 1)
		if err := c.Check(); err != nil || len(c.Layers) != layers || c.InputGradient != 0 {
			t.Fatalf("%d layers: %v, %v", layers, len(c.Layers), err)
		}
		for i, l := range c.Layers {
			if l.Forward < 1e3 || l.Forward > 10e3 || l.Backward < 1.8*l.Forward || l.Backward > 2.2*l.Forward || l.Output < 1e6 || l.Output > 10e6 || l.Saved < l.Output || l.Saved > 4*l.Output ||
				max(l.ForwardTmp, l.BackwardTmp) > l.Output || l.ForwardNoGrad != l.Forward || l.ForwardNoGradTmp != l.ForwardTmp {
				t.Errorf("layer %d: %+v", i, l)
			}
		}
		if again := randomChain(layers, 1); again.Fingerprint() != c.Fingerprint() {
			t.Errorf("%d layers: not the same again", layers)
		}
		if layers > 1 && randomChain(layers, 2).Fingerprint() == c.Fingerprint() {
			t.Errorf("%d layers: another seed, the same chain", layers)
		}
	}
}

// TestSolverRuns: what is measured of each seed is all there, and the plan that is refined is never
// worse than the first.
func TestSolverRuns(t *testing.T) {
	var runs solverRuns
	const seeds = 4
	for seed := range uint64(seeds) {
		if err := runs.add(context.Background(), randomChain(20, seed), 0.5, 50); err != nil {
			t.Fatal(err)
		}
	}
	for name, list := range map[string][]float64{
		"table": runs.table, "bytes": runs.bytes, "first": runs.first, "gap of the first": runs.firstGap, "solve": runs.solve, "gap": runs.gap, "overhead": runs.overhead,
	} {
		if len(list) != seeds || slices.Min(list) < 0 || name != "gap" && name != "gap of the first" && slices.Min(list) == 0 {
			t.Errorf("%s: %v", name, list)
		}
	}
	for i, gap := range runs.gap {
		if gap > max(runs.firstGap[i], 0.001) {
			t.Errorf("seed %d: a gap of %v, %v at first", i, gap, runs.firstGap[i])
		}
	}
}

// A limit that no plan can hold is an error, not a number in a table.
func TestSolverRunsRefuse(t *testing.T) {
	var runs solverRuns
	if err := runs.add(context.Background(), randomChain(20, 1), 0.01, 50); err == nil {
		t.Error("a hundredth of the memory is enough, it says")
	}
	ctx, stop := context.WithCancel(context.Background())
	stop()
	if _, err := measureSolver(ctx, effort{seeds: 1}); err == nil {
		t.Error("it does not stop with the context")
	}
	if _, err := solver.Greatest(remat.Chain{}); err == nil {
		t.Error("an empty chain has a peak")
	}
}
