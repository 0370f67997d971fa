package report

import (
	"slices"

	"penstock.example/plan"
	"penstock.example/remat"
	"penstock.example/remat/solver"
)

// Curve is how the time of one micro-batch on a stage depends on the memory it may take, as far as
// plans are known, and the point of the run's plan.
type Curve struct {
	Stage  int          `json:"stage"`
	Layers int          `json:"layers"` // of the chain
	Once   float64      `json:"once"`   // microseconds without recomputation
	Best   []CurvePoint `json:"best"`   // plans that no other plan beats, by ascending bytes
	Chosen []CurvePoint `json:"chosen"` // the run's plan, for its micro-batches after the first
}

// CurvePoint is the peak and the time of a plan.
type CurvePoint struct {
	Bytes int64   `json:"bytes"`
	Time  float64 `json:"us"`
}

// NewCurve puts a plan's point on the curve of best plans of the chain of a stage (solver.Table.Curve).
// A nil plan has none.
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
		if i == 0 && len(s.MicroBatches) > 1 { // it makes the gradients, which are not in the chain
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
		if err != nil { // of units that the chain does not have
			continue
		}
		if at := (CurvePoint{took.Peak, took.Time}); !slices.Contains(out.Chosen, at) {
			out.Chosen = append(out.Chosen, at)
			out.Best = withPlan(out.Best, at)
		}
	}
	return out
}

// withPlan adds the point of a plan to a curve if it is better than the curve: points of tables are
// rounded up.
func withPlan(best []CurvePoint, at CurvePoint) []CurvePoint {
	worse := func(p CurvePoint) bool { return p.Bytes >= at.Bytes && p.Time >= at.Time }
	if slices.ContainsFunc(best, func(p CurvePoint) bool {
		return p.Bytes <= at.Bytes &&
			p.Time <= at.Time
	}) {
		return best
	}
	best = slices.DeleteFunc(best, worse)
	i, _ := slices.BinarySearchFunc(best, at.Bytes, func(p CurvePoint,
		bytes int64) int {
		return int(p.Bytes - bytes)
	})
	return slices.Insert(best, i, at)
}
