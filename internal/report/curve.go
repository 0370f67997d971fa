package report

import (
	"cmp"
	"math"
	"slices"

	"penstock.example/internal/solver"
	"penstock.example/plan"
	"penstock.example/remat"
)

// Curve is how the time of one micro-batch on a stage depends on memory: the best known plans, and the
// run's plan.
type Curve struct {
	Stage  int          `json:"stage"`
	Layers int          `json:"layers"` // number of layers of the chain
	Once   float64      `json:"once"`   // microseconds without recomputation
	Best   []CurvePoint `json:"best"`   // plans that no other plan beats, by ascending bytes
	Chosen []CurvePoint `json:"chosen"` // the run's plan, for its micro-batches after the first
}

// CurvePoint is the peak and the time of a plan.
type CurvePoint struct {
	Bytes int64   `json:"bytes"`
	Time  float64 `json:"us"`
}

// NewCurve adds a plan's points to the best points of a stage's chain (solver.Curve). A nil plan
// has none.
func NewCurve(stage int, c remat.Chain, best []solver.Point, p *plan.Plan) Curve {
	out := Curve{Stage: stage, Layers: len(c.Layers), Once: c.Once()}
	for _, b := range best {
		out.Best = append(out.Best, CurvePoint{b.Peak, b.Time})
	}
	if p == nil || stage >= len(p.Stages) {
		return out
	}
	s := p.Stages[stage]
	for i, m := range s.MicroBatches {
		if i == 0 && len(s.MicroBatches) > 1 { // it allocates the gradients, which are not in the chain
			continue
		}
		var ops []remat.Op // on the units after the prologue, numbered as in the chain
		for _, op := range m.Ops {
			if op.Kind != remat.LossStep {
				op.Layer -= s.Prologue
			}
			if op.Layer >= 0 {
				ops = append(ops, op)
			}
		}
		took, err := remat.Check(c, ops)
		at := CurvePoint{took.Peak, took.Time}
		if err != nil || slices.Contains(out.Chosen, at) { // an error: the chain lacks some of the units
			continue
		}
		out.Chosen, out.Best = append(out.Chosen, at), append(out.Best, at)
	}
	// A plan may beat the solver's points, whose bytes are rounded up.
	slices.SortFunc(out.Best, func(a, b CurvePoint) int {
		return cmp.Or(cmp.Compare(a.Bytes, b.Bytes), cmp.Compare(a.Time, b.Time))
	})
	fastest := math.Inf(1)
	out.Best = slices.DeleteFunc(out.Best, func(p CurvePoint) bool {
		beaten := p.Time >= fastest
		fastest = min(fastest, p.Time)
		return beaten
	})
	return out
}
