package report

import (
	"fmt"
	"slices"

	"penstock.example/plan"
	"penstock.example/remat"
)

// DescribePlan describes a plan that a search has found. measured is the profile that was searched.
func DescribePlan(title string, r plan.Result, measured []plan.Costs) *Run {
	b, c := r.Best, measured[0].Chain
	for _, m := range measured {
		if m.Threads == b.Threads && m.Rows == b.Rows {
			c = m.Chain
		}
	}
	out := &Run{Title: title, Plan: b.Planned, Planned: &b.Timeline, Limits: b.Limits}
	for _, l := range c.Layers {
		out.Layers = append(out.Layers, Layer{Name: l.Name, Parameters: l.WeightGradient,
			Forward: l.Forward / 1e6, Backward: l.Backward / 1e6, Saved: l.Saved})
	}
	first := 0
	for s, n := range b.Balance {
		out.Chains = append(out.Chains, Chain{Stage: s,
			Chain: plan.ChainStage(c, first, first+n).Costs.Chain(remat.Adds)})
		first += n
	}
	for _, o := range r.Schedules {
		other := Other{Schedule: o.Schedule, Lost: o.Lost}
		if p := o.Plan; p != nil {
			other.MicroBatches, other.Step, other.Bound = p.MicroBatches, p.Step.Seconds(),
				o.LowerBound.Seconds()
			other.Peak = slices.Max(append(p.Peaks, 0))
			if p != b && o.Lost == "" {
				other.Lost = fmt.Sprintf("time: %.1f %% more", 100*(float64(p.Step)/float64(b.Step)-1))
			}
		}
		out.Others = append(out.Others, other)
	}
	return out
}
