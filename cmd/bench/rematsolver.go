package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"penstock.example/remat"

	"penstock.example/remat/solver"
)

// Limits that random chains are planned under, as parts of the peak without recomputation.
var solverLimits = []float64{0.3, 0.6}

// published is what rotor's own solver, in C, was measured to take for such chains, quoted and not
// measured in this run: 500 slots, limits of 30 % and 60 %, three seeds, one core of an AVX-512
// machine. The time is from the call to the plan.
type published struct {
	Layers int     `json:"layers"`
	Least  float64 `json:"least_ms"`
	Most   float64 `json:"most_ms"`
	Bytes  float64 `json:"resident_bytes"` // of the process
}

var rotor = []published{
	{50, 250, 290, 160e6},
	{100, 850, 910, 523e6},
	{200, 3300, 7300, 1.96e9},
	{339, 13700, 20700, 5.7e9}, // as many layers as its ResNet-1001 has
}

// solverResult is what planning random chains of so many layers takes, over seeds.
type solverResult struct {
	Layers int     `json:"layers"`
	Limit  float64 `json:"limit"` // as a part of the peak without recomputation
	Slots  int     `json:"slots"`
	// A table of so many slots, which answers for every limit up to this one and every interval of
	// the layers.
	Table      spread `json:"table_ms"`
	TableBytes spread `json:"table_bytes"`
	// The first plan, of so many slots, with its bound, and the one that Solve returns after
	// refining. Gaps are times less their lower bounds, as parts of those.
	First    spread    `json:"first_ms"`
	FirstGap spread    `json:"first_gap"`
	Solve    spread    `json:"solve_ms"`
	Gap      spread    `json:"gap"`
	Overhead spread    `json:"overhead"` // time of the plan on that of computing everything once
	Rotor    published `json:"rotor_quoted"`
}

// randomChain is one of rotor's experiments: forwards of 1 to 10 ms, backwards of about twice that,
// outputs of 1 to 10 MB, one to four times as much saved, temporaries up to the size of the output.
func randomChain(layers int, seed uint64) remat.Chain {
	r := rand.New(rand.NewPCG(seed, 1))
	between := func(least, most float64) float64 { return least + (most-least)*r.Float64() }
	c := remat.Chain{Input: int64(between(1e6, 10e6))}
	for i := range layers {
		f, a := between(1e3, 10e3), int64(between(1e6, 10e6))
		l := remat.Layer{
			Name: fmt.Sprint("layer", i), Forward: f, ForwardNoGrad: f, Backward: f * between(1.8, 2.2), Output: a, Gradient: a, Saved: int64(float64(a) * between(1, 4)),
			ForwardTmp: r.Int64N(a + 1), BackwardTmp: r.Int64N(a + 1),
		}
		l.ForwardNoGradTmp = l.ForwardTmp
		c.Layers = append(c.Layers, l)
	}
	return c
}

// measureSolver plans random chains of each of rotor's lengths.
func measureSolver(ctx context.Context, e effort) ([]solverResult, error) {
	var out []solverResult
	for _, theirs := range rotor {
		for _, part := range solverLimits {
			r := solverResult{Layers: theirs.Layers, Limit: part, Slots: 500, Rotor: theirs}
			var runs solverRuns
			for seed := range e.seeds {
				if err := runs.add(ctx, randomChain(theirs.Layers, uint64(seed+1)), part, r.Slots); err != nil {
					return nil, fmt.Errorf("a random chain of %d layers, seed %d: %w", theirs.Layers, seed+1, err)
				}
			}
			r.Table, r.TableBytes, r.First, r.FirstGap = spreadOf(runs.table), spreadOf(runs.bytes), spreadOf(runs.first), spreadOf(runs.firstGap)
			r.Solve, r.Gap, r.Overhead = spreadOf(runs.solve), spreadOf(runs.gap), spreadOf(runs.overhead)
			out = append(out, r)
		}
	}
	return out, nil
}

// solverRuns are by seed.
type solverRuns struct{ table, bytes, first, firstGap, solve, gap, overhead []float64 }

func (s *solverRuns) add(ctx context.Context, c remat.Chain, part float64, slots int) error {
	all, err := solver.Greatest(c)
	if err != nil {
		return err
	}
	limit := int64(part * float64(all))
	var table *solver.Table
	took, err := quickest(func() (err error) {
		table, err = solver.NewTable(ctx, c, limit, solver.Options{Steps: -1, Slots: slots})
		return err
	})
	if err != nil {
		return err
	}
	s.table, s.bytes = append(s.table, took), append(s.bytes, float64(table.Bytes()))
	for _, run := range []struct {
		options solver.Options
		ms, gap *[]float64
	}{{solver.Options{Steps: -1, Slots: slots, Gap: -1}, &s.first, &s.firstGap}, {solver.Options{Slots: slots}, &s.solve, &s.gap}} {
		var p remat.Plan
		took, err := quickest(func() (err error) {
			p, err = solver.Solve(ctx, c, limit, run.options)
			return err
		})
		if err != nil {
			return err
		}
		if err := remat.CheckPlan(c, p); err != nil {
			return err
		}
		if !p.Feasible {
			return fmt.Errorf("no plan under %d bytes, it says; at least %d", limit, p.Peak)
		}
		*run.ms, *run.gap = append(*run.ms, took), append(*run.gap, p.Time/p.LowerBound-1)
		if run.options.Gap == 0 {
			s.overhead = append(s.overhead, p.Time/c.Once()-1)
		}
	}
	return nil
}

// quickest is the least time in milliseconds that f takes in up to five runs, of which no more
// begin after a fifth of a second.
func quickest(f func() error) (ms float64, err error) {
	begin := time.Now()
	for n := 0; n == 0 || n < 5 && time.Since(begin) < 200*time.Millisecond; n++ {
		start := time.Now()
		if err := f(); err != nil {
			return 0, err
		}
		if took := time.Since(start).Seconds() * 1e3; n == 0 || took < ms {
			ms = took
		}
	}
	return ms, nil
}
