package baselines

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"penstock.example/internal/arg"
	"penstock.example/remat"
)

// Baseline is a plan of one of the usual strategies.
type Baseline struct {
	Strategy    string // "none", "all", "sequential" or "revolve"
	Segments    int    // of sequential, else 0
	Checkpoints int    // of revolve, else 0
	Ops         []remat.Op
	Peak        int64   // bytes
	Time        float64 // microseconds
}

// Baselines is the plans of the usual strategies, by ascending peak: None, All, and Sequential and
// Revolve with 2 to 2*sqrt(layers) segments or checkpoints, as rotor's authors compare. A plan is
// left out if another of the same strategy has less time and no higher peak, or the other way
// round. Sequential with the root of the layers is always there. The error is a
// [*remat.ChainError].
func Baselines(c remat.Chain) ([]Baseline, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	n := len(c.Layers)
	plans := [][]Baseline{{{Strategy: "none", Ops: None(n)}}, {{Strategy: "all", Ops: All(n)}}, nil, nil}
	for k := 2; k <= min(n, int(2*math.Sqrt(float64(n)))); k++ {
		segments, err := Sequential(n, k)
		if err != nil {
			return nil, err
		}
		checkpoints, err := Revolve(n, k)
		if err != nil {
			return nil, err
		}
		plans[2] = append(plans[2], Baseline{Strategy: "sequential", Segments: k, Ops: segments})
		plans[3] = append(plans[3], Baseline{Strategy: "revolve", Checkpoints: k, Ops: checkpoints})
	}
	var out []Baseline
	for _, family := range plans {
		for i := range family {
			report, err := remat.Check(c, family[i].Ops)
			if err != nil {
				return nil, fmt.Errorf("%w (of the strategy %s)", err, family[i].Strategy)
			}
			family[i].Peak, family[i].Time = report.Peak, report.Time
		}
		out = append(out, undominated(family, n)...)
	}
	slices.SortStableFunc(out, func(a, b Baseline) int { return cmp.Or(cmp.Compare(a.Peak, b.Peak), cmp.Compare(a.Time, b.Time)) })
	return out, nil
}

// undominated leaves out plans that another one beats in time or peak and does not exceed in the
// other. Of equal plans the first stays.
func undominated(plans []Baseline, layers int) []Baseline {
	var out []Baseline
	for i, p := range plans {
		beaten := slices.ContainsFunc(plans, func(q Baseline) bool {
			return q.Peak <= p.Peak && q.Time <= p.Time && (q.Peak < p.Peak || q.Time < p.Time)
		}) || slices.ContainsFunc(plans[:i], func(q Baseline) bool { return q.Peak == p.Peak && q.Time == p.Time })
		if !beaten || p.Segments > 0 && p.Segments == roundSqrt(layers) {
			out = append(out, p)
		}
	}
	return out
}

// Compared is a baseline, and the best plan under a limit of the same peak.
type Compared struct {
	Baseline
	Optimum remat.Plan
	// Gain is how much more the optimum does in the same time, as a part: 0.2 is six steps where
	// the baseline does five.
	Gain float64
}

// Compare sets baselines beside the plans that solve finds at their peaks, as [solver.Solve] or a
// table does. It is an error if solve finds none, since the baseline is one.
func Compare(ctx context.Context, baselines []Baseline, solve func(ctx context.Context, limit int64) (remat.Plan, error)) ([]Compared, error) {
	if err := cmp.Or(arg.Context(ctx, "remat"), arg.Given(solve, "remat: Compare: the function that solves", "one like Table.Solve")); err != nil {
		return nil, err
	}
	var out []Compared
	for _, b := range baselines {
		p, err := solve(ctx, b.Peak)
		if err != nil {
			return nil, err
		}
		if !p.Feasible {
			return nil, fmt.Errorf("remat: there is no plan under %d bytes, it says, at least %d are needed; the strategy %s has one", b.Peak, p.Peak, b.Strategy)
		}
		compared := Compared{Baseline: b, Optimum: p}
		if p.Time > 0 {
			compared.Gain = b.Time/p.Time - 1
		}
		out = append(out, compared)
	}
	return out, nil
}
