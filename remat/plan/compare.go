package plan

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"penstock/internal/arg"
)

// Baseline is a plan of a strategy that others use.
type Baseline struct {
	Strategy string // "none", "all", "sequential", "revolve" or "revolve_saved"
	Segments int    // of sequential, else 0
	Ops      []Op
	Peak     int64   // bytes
	Time     float64 // microseconds
}

// BaselineConfig says which baselines there are.
type BaselineConfig struct {
	// Limits are those that Revolve's plans are made for, in bytes; nil: ten, evenly between the peaks of the strategies all and none.
	Limits []int64
	Slots  int // of Revolve, see RevolveConfig
}

// Baselines is the plans of the usual strategies, by ascending peak: None and All; Sequential with 2 to twice the root of the number of layers segments, as rotor's authors compare; and
// Revolve in both variants under the limits. Of plans of one strategy those are left out that another of the same beats in time and peak, save for sequential with the root of the layers.
func Baselines(ctx context.Context, c Chain, config BaselineConfig) ([]Baseline, error) {
	if err := arg.Context(ctx, "plan"); err != nil {
		return nil, err
	}
	if err := c.Check(); err != nil {
		return nil, err
	}
	n := len(c.Layers)
	var out []Baseline
	family := func(strategy string, plans []Baseline) error {
		for i := range plans {
			report, err := Check(c, plans[i].Ops)
			if err != nil {
				return fmt.Errorf("%w (of the strategy %s)", err, strategy)
			}
			plans[i].Strategy, plans[i].Peak, plans[i].Time = strategy, report.Peak, report.Time
		}
		out = append(out, undominated(plans, n)...)
		return nil
	}
	if err := family("none", []Baseline{{Ops: None(n)}}); err != nil {
		return nil, err
	}
	if err := family("all", []Baseline{{Ops: All(n)}}); err != nil {
		return nil, err
	}
	limits, most := config.Limits, int64(0)
	if limits == nil {
		limits = between(out[1].Peak, out[0].Peak)
	}
	var sequential []Baseline
	for segments := 2; segments <= min(n, int(2*math.Sqrt(float64(n)))); segments++ {
		ops, err := Sequential(n, segments)
		if err != nil {
			return nil, err
		}
		sequential = append(sequential, Baseline{Segments: segments, Ops: ops})
	}
	if err := family("sequential", sequential); err != nil {
		return nil, err
	}
	for _, limit := range limits {
		most = max(most, limit)
	}
	for _, saved := range []bool{false, true} {
		if most < c.Input {
			break
		}
		r, err := NewRevolve(ctx, c, most, RevolveConfig{Slots: config.Slots, Saved: saved})
		if err != nil {
			return nil, err
		}
		var plans []Baseline
		for _, limit := range limits {
			if ops, ok := r.Ops(limit); ok {
				plans = append(plans, Baseline{Ops: ops})
			}
		}
		if err := family(map[bool]string{false: "revolve", true: "revolve_saved"}[saved], plans); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(out, func(a, b Baseline) int { return cmp.Or(cmp.Compare(a.Peak, b.Peak), cmp.Compare(a.Time, b.Time)) })
	return out, nil
}

// between is ten limits from the least to the greatest.
func between(least, greatest int64) []int64 {
	const limits = 10
	least = min(least, greatest)
	var out []int64
	for i := range int64(limits) {
		out = append(out, least+(greatest-least)/(limits-1)*i)
	}
	out[limits-1] = greatest
	return out
}

// undominated leaves out the plans than which another takes no more of either, and less of one; of equals the first stays.
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
	Optimum Plan
	// Gain is how much more the optimum does in the same time, as a part: 0.2 is six steps where the baseline does five.
	Gain float64
}

// Compare sets baselines beside the plans that solve finds at their peaks, such as those of [Solve] or of a table. Where solve finds none, there is an error: the baseline is one.
func Compare(ctx context.Context, baselines []Baseline, solve func(ctx context.Context, limit int64) (Plan, error)) ([]Compared, error) {
	if err := cmp.Or(arg.Context(ctx, "plan"), arg.Given(solve, "plan: Compare: the function that solves", "one like Table.Solve")); err != nil {
		return nil, err
	}
	var out []Compared
	for _, b := range baselines {
		p, err := solve(ctx, b.Peak)
		if err != nil {
			return nil, err
		}
		if !p.Feasible {
			return nil, fmt.Errorf("plan: there is no plan under %d bytes, it says, at least %d are needed; the strategy %s has one", b.Peak, p.Peak, b.Strategy)
		}
		compared := Compared{Baseline: b, Optimum: p}
		if p.Time > 0 {
			compared.Gain = b.Time/p.Time - 1
		}
		out = append(out, compared)
	}
	return out, nil
}
