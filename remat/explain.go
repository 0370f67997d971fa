package remat

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
)

// LayerExplanation has the costs of a layer in a plan.
type LayerExplanation struct {
	Name       string `json:"name"`
	Keeps      string `json:"keeps"`      // nothing, input or everything, when the loss begins
	Recomputed int    `json:"recomputed"` // runs of the forward beyond the first
	Held       int64  `json:"held_bytes"` // when the loss begins; shared memory counts for its first layer
	// Time is the microseconds of all runs, Extra those beyond a forward with gradients and a backward.
	Time  float64 `json:"time_us"`
	Extra float64 `json:"extra_us"`
}

// Explanation is a plan by layers, and what other limits would mean.
type Explanation struct {
	Plan   Plan
	Report Report
	Layers []LayerExplanation
	Plain  Report // of plain training, [None]; limits above its peak are of no use
	More   []Step // what more memory would save, by ascending limit
}

// Step is a larger limit and the time that it saves.
type Step struct {
	Limit int64   `json:"limit_bytes"`
	Time  float64 `json:"time_us"`  // of the best plan
	Saved float64 `json:"saved_us"` // against the plan explained
}

// Explain explains a plan, and how much time more memory would save. more are bytes beyond the plan's
// limit, or beyond its peak without a limit. solve makes a plan of c within a limit.
func Explain(ctx context.Context, c Chain, p Plan, more []int64,
	solve func(ctx context.Context, limit int64) (Plan, error)) (e Explanation, err error) {
	if err := CheckPlan(c, p); err != nil {
		return e, err
	}
	if !p.Feasible {
		return e, fmt.Errorf("remat: there is no plan under %d bytes to explain; want at least %d", p.Limit,
			p.Peak)
	}
	e = Explanation{Plan: p, Layers: explainLayers(c, p.Ops)}
	if e.Report, err = Check(c, p.Ops); err == nil {
		e.Plain, err = Check(c, None(len(c.Layers)))
	}
	from := cmp.Or(p.Limit, p.Peak)
	for k := 0; k < len(more) && err == nil; k++ {
		limit := from + min(more[k], math.MaxInt64-from)
		var better Plan
		better, err = solve(ctx, limit)
		e.More = append(e.More, Step{limit, better.Time, max(0, p.Time-better.Time)})
	}
	return e, err
}

func explainLayers(c Chain, ops []Op) []LayerExplanation {
	out := make([]LayerExplanation, len(c.Layers))
	r := newReplay(c)
	counted := make([]bool, len(r.size))
	for _, o := range ops {
		if o.Kind == LossStep {
			for i := range out {
				var blocks []int
				out[i].Keeps = "nothing"
				if r.state[i] == alone {
					out[i].Keeps, blocks = "input", r.x[i]
				}
				if r.state[i+1] == within {
					out[i].Keeps, blocks = "everything", slices.Concat(blocks, r.full[i+1])
				}
				for _, b := range blocks {
					if !counted[b] {
						out[i].Held += r.size[b]
					}
					counted[b] = true
				}
			}
		}
		took, _ := r.do(o)
		if o.Kind == LossStep {
			continue
		}
		out[o.Layer].Time += took.time
		if o.Kind.forward() {
			out[o.Layer].Recomputed++
		}
	}
	for i, l := range c.Layers { // subtracted last, so that equal sums differ by exactly 0
		out[i].Name, out[i].Extra = l.Name, out[i].Time-(l.Forward+l.Backward)
		out[i].Recomputed--
	}
	return out
}
