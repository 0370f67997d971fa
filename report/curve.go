package report

import (
	"penstock/planner"
	"penstock/remat"
	"penstock/remat/solver"
)

// Curve is how the time of one micro-batch on a stage depends on the memory it may take, as far as
// plans are known, and what the run's plan does.
type Curve struct {
	Stage  int          `json:"stage"`
	Layers int          `json:"layers"` // of the chain
	Once   float64      `json:"once"`   // microseconds without recomputation
	Best   []CurvePoint `json:"best"`   // that no plan beats, by ascending bytes
	Chosen []CurvePoint `json:"chosen"` // of the run's plan, for its micro-batches after the first
}

// CurvePoint is the peak and the time of a plan.
type CurvePoint struct {
	Bytes int64   `json:"bytes"`
	Time  float64 `json:"us"`
}

// NewCurve puts a plan's point on the curve of best plans of the chain of a stage (solver.Table.Curve).
// A nil plan has none.
func NewCurve(stage int, c remat.Chain, best []solver.Point, p *planner.Plan) Curve {
	out := Curve{Stage: stage, Layers: len(c.Layers), Once: c.Once()}
	for _, b := range best {
		out.Best = append(out.Best, CurvePoint{b.Peak, b.Time})
	}
	if p == nil || stage >= len(p.Stages) {
		return out
	}
	s := p.Stages[stage]
	seen := map[CurvePoint]bool{}
	for i, m := range s.MicroBatches {
		if i == 0 && len(s.MicroBatches) > 1 { // it makes the gradients, which is not in the chain
			continue
		}
		took, err := remat.Check(c, withoutPrologue(m.Ops, s.Prologue))
		if err != nil { // of units that the chain does not have
			continue
		}
		if at := (CurvePoint{took.Peak, took.Time}); !seen[at] {
			seen[at] = true
			out.Chosen = append(out.Chosen, at)
		}
	}
	return out
}

// withoutPrologue is a plan's operations on the units after the prologue, numbered as in the chain.
func withoutPrologue(ops []remat.Op, prologue int) (out []remat.Op) {
	for _, op := range ops {
		switch {
		case op.Kind == remat.LossStep:
		case op.Layer < prologue:
			continue
		default:
			op.Layer -= prologue
		}
		out = append(out, op)
	}
	return out
}
