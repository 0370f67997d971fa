package explain

import (
	"cmp"
	"context"
	"fmt"
	"math"

	"penstock.example/internal/arg"
	"penstock.example/remat"
	"penstock.example/remat/baselines"
	"penstock.example/remat/solver"
)

// LayerExplanation is what a plan does with a layer.
type LayerExplanation struct {
	Name       string
	Keeps      remat.Keeping
	Recomputed int   // runs of the forward beyond the first
	Held       int64 // bytes that are kept for this layer when the loss begins, and for none before it
	// Microseconds of all runs, and of them those that plain training, each forward with gradients
	// and backward once, does not take.
	Time, Extra float64
}

// Explanation is a plan by layers, and what other limits would mean.
type Explanation struct {
	Plan   remat.Plan
	Report remat.Report
	Layers []LayerExplanation
	Plain  remat.Report // of plain training, [baselines.None]. Its peak is the greatest limit that is of use.
	Least  LeastLimit
	More   []Step // what more memory would save, by ascending limit
}

// LeastLimit is the least bytes that any plan needs, and the operation that sets them.
type LeastLimit struct {
	Bytes int64
	Op    remat.Op // at which the plan that needs the least is at its peak; its layer sets the least
	Parts remat.Breakdown
}

// Step is a larger limit, and what it saves.
type Step struct {
	Limit int64
	Time  float64 // of the best plan
	Saved float64 // microseconds against the plan explained
}

// Explain says what a plan does, why the least limit is what it is, and what more memory would
// save. more are bytes beyond the plan's limit, or beyond its peak if it has none. solve finds the
// plans for these limits, as [solver.Solve] does.
func Explain(ctx context.Context, c remat.Chain, p remat.Plan, more []int64, solve func(ctx context.Context, limit int64) (remat.Plan, error)) (Explanation, error) {
	if err := cmp.Or(arg.Context(ctx, "remat"), arg.Given(solve, "remat: Explain: the function that solves", "one like Table.Solve")); err != nil {
		return Explanation{}, err
	}
	if err := remat.CheckPlan(c, p); err != nil {
		return Explanation{}, err
	}
	if !p.Feasible {
		return Explanation{}, fmt.Errorf("remat: there is no plan under %d bytes to explain; want at least %d", p.Limit, p.Peak)
	}
	e := Explanation{Plan: p, Layers: explainLayers(c, p.Ops)}
	var err error
	if e.Report, err = remat.Check(c, p.Ops); err != nil {
		return Explanation{}, err
	}
	if e.Plain, err = remat.Check(c, baselines.None(len(c.Layers))); err != nil {
		return Explanation{}, err
	}
	if e.Least, err = ExplainLeast(c); err != nil {
		return Explanation{}, err
	}
	from := p.Limit
	if from == 0 {
		from = p.Peak
	}
	for _, bytes := range more {
		limit := from + min(bytes, math.MaxInt64-from)
		better, err := solve(ctx, limit)
		if err != nil {
			return Explanation{}, err
		}
		e.More = append(e.More, Step{limit, better.Time, max(0, p.Time-better.Time)})
	}
	return e, nil
}

// ExplainLeast says what the least limit of a chain is, exactly, and what sets it. The error is a
// [*remat.ChainError].
func ExplainLeast(c remat.Chain) (LeastLimit, error) {
	p, _, err := solver.Least(c)
	if err != nil {
		return LeastLimit{}, err
	}
	report, err := remat.Check(c, p.Ops)
	if err != nil {
		return LeastLimit{}, err
	}
	return LeastLimit{report.Peak, p.Ops[report.PeakOp], report.AtPeak}, nil
}

// explainLayers follows the operations, which are allowed.
func explainLayers(c remat.Chain, ops []remat.Op) []LayerExplanation {
	out, plain := make([]LayerExplanation, len(c.Layers)), make([]float64, len(c.Layers))
	for i, l := range c.Layers {
		out[i].Name = l.Name
		plain[i] = l.Forward + l.Backward
		out[i].Recomputed = -1
	}
	r := remat.NewReplay(c)
	for _, o := range ops {
		if o.Kind == remat.LossStep {
			for i, bytes := range r.KeptBytes() {
				out[i].Keeps, out[i].Held = r.Keeps(i), bytes
			}
		}
		took, _ := r.Do(o)
		if o.Kind == remat.LossStep {
			continue
		}
		out[o.Layer].Time += took.Time
		if o.Kind != remat.Backward {
			out[o.Layer].Recomputed++
		}
	}
	for i := range out { // subtracted last: in another order nothing becomes a little, by rounding
		out[i].Extra = out[i].Time - plain[i]
	}
	return out
}
