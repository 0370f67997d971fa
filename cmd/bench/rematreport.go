package main

import (
	"context"
	"fmt"
	"math"
	"slices"
)

// rematResult is of plans of what to recompute: finding them, and training by them.
type rematResult struct {
	Solver   []solverResult  `json:"solver"`
	Networks []networkResult `json:"networks"`
	Gain     float64         `json:"gain"` // mean over the networks
}

func measureRemat(ctx context.Context, e effort) (*rematResult, error) {
	r := &rematResult{}
	var err error
	if r.Solver, err = measureSolver(ctx, e); err != nil {
		return nil, err
	}
	for _, n := range networks {
		if e.fewNetworks && !n.quick {
			continue
		}
		result, err := n.compare(ctx, e)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", n.Model, err)
		}
		r.Networks = append(r.Networks, result)
	}
	for _, n := range r.Networks {
		r.Gain += n.Gain / float64(len(r.Networks))
	}
	return r, nil
}

// targets are those of plans. A gap above a thousandth is not missed for a coarse first table but
// for the plan that Solve returns.
func (r *rematResult) targets() []target {
	var list []target
	for _, s := range r.Solver {
		name := fmt.Sprintf("plans: %d layers, limit %.0f %%: ", s.Layers, 100*s.Limit)
		switch s.Layers {
		case 100:
			list = append(list, atMost(name+"a table, ms", s.Table.Median, 40))
		case 339:
			list = append(list, atMost(name+"a table, ms", s.Table.Median, 1000), atMost(name+"a table, MB", s.TableBytes.Max/1e6, 200))
		}
	}
	if len(r.Networks) == 0 {
		return list
	}
	farthest, off, above := 0.0, 0, 0
	for _, n := range r.Networks {
		plans := []planResult{n.None}
		for _, p := range n.Points {
			plans = append(plans, p.Theirs, p.Best)
			if p.Best.Peak > p.Theirs.Peak {
				above++
			}
			if p.Strategy == "sequential" {
				farthest = max(farthest, math.Abs(p.Best.asPredicted()))
			}
		}
		for _, p := range plans {
			if p.Peak != p.PredictedPeak {
				off++
			}
		}
	}
	return append(list,
		atMost("plans: peaks that are not as predicted, to the byte", float64(off), 0),
		atMost("plans: peaks above the limit", float64(above), 0),
		atMost("plans: time predicted beside measured, %", 100*farthest, 5),
		atLeast("plans: throughput gained over checkpoint_sequential, mean of networks, %", 100*r.Gain, 10),
	)
}

func (r *report) writeRemat(t *table) {
	if r.Remat == nil {
		return
	}
	t.block("plans of random chains, 500 slots", "limit", "table ms", "MB", "first plan ms", "gap %", "plan ms", "gap %", "overhead %", "rotor ms, quoted", "MB, quoted")
	for _, s := range r.Remat.Solver {
		t.line(fmt.Sprintf("%d layers", s.Layers), fmt.Sprintf("%.0f %%", 100*s.Limit), one(s.Table.Median, "%.1f"), one(s.TableBytes.Median/1e6, "%.1f"), one(s.First.Median, "%.1f"),
			one(100*s.FirstGap.Median, "%.2f"), one(s.Solve.Median, "%.1f"), one(100*s.Gap.Median, "%.3f"), one(100*s.Overhead.Median, "%.1f"),
			fmt.Sprintf("%.0f-%.0f", s.Rotor.Least, s.Rotor.Most), one(s.Rotor.Bytes/1e6, "%.0f"))
	}
	if len(r.Remat.Networks) == 0 {
		return
	}
	t.block("training by plans", "batch", "size", "layers", "taken MiB", "segments left out", "mean gain %")
	for _, n := range r.Remat.Networks {
		t.line(n.Model, fmt.Sprint(n.Batch), fmt.Sprint(n.Size), fmt.Sprint(n.Layers), one(float64(n.Base)/(1<<20), "%.1f"), join("%d", n.Skipped), one(100*n.Gain, "%+.1f"))
	}
	t.line("mean of networks", "", "", "", "", "", one(100*r.Remat.Gain, "%+.1f"))
	t.block("network", "strategy", "peak MiB", "of none", "step ms", "predicted", "overhead %", "predicted",
		"best plan's MiB", "step ms", "predicted", "overhead %", "predicted", "gain %", "min-max")
	for _, n := range r.Remat.Networks {
		n.write(t)
	}
}

func (n networkResult) write(t *table) {
	cells := func(p planResult) []string {
		over := 100 * (p.Step.Median/n.None.Step.Median - 1)
		return []string{one(p.Step.Median, "%.1f"), one(p.PredictedStep, "%.1f"), one(over, "%+.1f"), one(100*(p.PredictedStep/n.None.PredictedStep-1), "%+.1f")}
	}
	line := func(name string, p planResult, more ...string) {
		head := []string{n.Model, name, p.mebibytes(), one(100*float64(p.Peak)/float64(n.None.Peak), "%.0f %%")}
		t.line(slices.Concat(head, cells(p), more)...)
	}
	line("none", n.None)
	for _, p := range n.Points {
		name := p.Strategy
		if p.Segments > 0 {
			name = fmt.Sprintf("%s %d", p.Strategy, p.Segments)
		}
		gain := []string{one(100*p.Gain.Median, "%+.1f"), fmt.Sprintf("%+.1f to %+.1f", 100*p.Gain.Min, 100*p.Gain.Max)}
		line(name, p.Theirs, slices.Concat([]string{p.Best.mebibytes()}, cells(p.Best), gain)...)
	}
}

// mebibytes is the peak, with the predicted one where it differs.
func (r planResult) mebibytes() string {
	s := one(float64(r.Peak)/(1<<20), "%.1f")
	if r.Peak != r.PredictedPeak {
		s += fmt.Sprintf(" (predicted %.1f)", float64(r.PredictedPeak)/(1<<20))
	}
	return s
}
