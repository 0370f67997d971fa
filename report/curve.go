package report

import (
	"cmp"
	"slices"
	"time"

	"penstock.example/planner"
	"penstock.example/remat"
	"penstock.example/remat/solver"
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

// StepCurve is how the time of a whole step depends on the limit of its devices, and what the plan does.
type StepCurve struct {
	Best   []CurvePoint `json:"best"`   // by ascending limits
	Chosen CurvePoint   `json:"chosen"` // the plan's greatest peak
}

// NewStepCurve puts a plan's point on the curve of its step ([planner.Plan.OverLimits]). Planned is how long
// the plan's step is predicted to take: where that is not [planner.Plan.Step], as with transfers that take
// time, all of the curve is that much longer or shorter. Far from the plan the curve is an estimate; it goes
// through the plan's point, as the plan is the best that is known within its bytes. A nil plan has no curve.
func NewStepCurve(best []planner.LimitPoint, p *planner.Plan, planned time.Duration) *StepCurve {
	if p == nil {
		return nil
	}
	longer := 1.0
	if alone := p.Step(); alone > 0 && planned > 0 {
		longer = float64(planned) / float64(alone)
	}
	us := func(d time.Duration) float64 { return longer * float64(d) / float64(time.Microsecond) }
	out := &StepCurve{Chosen: CurvePoint{Time: us(p.Step())}}
	for _, d := range p.Devices {
		out.Chosen.Bytes = max(out.Chosen.Bytes, d.Peak)
	}
	for _, b := range best {
		out.Best = append(out.Best, CurvePoint{b.Limit, us(b.Step)})
	}
	out.Best = through(out.Best, out.Chosen)
	return out
}

// through is a curve of points by ascending bytes that goes through a point: what takes fewer bytes is no
// faster than that, and what takes more no slower.
func through(best []CurvePoint, at CurvePoint) []CurvePoint {
	out := []CurvePoint{at}
	for _, p := range best {
		switch {
		case p.Bytes < at.Bytes:
			p.Time = max(p.Time, at.Time)
		case p.Bytes > at.Bytes:
			p.Time = min(p.Time, at.Time)
		default:
			continue
		}
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b CurvePoint) int { return cmp.Compare(a.Bytes, b.Bytes) })
	for i := range out[1:] {
		out[i+1].Time = min(out[i+1].Time, out[i].Time)
	}
	return out
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
			out.Best = withPlan(out.Best, at)
		}
	}
	return out
}

// withPlan is a curve with the point of a plan that may be better: points of tables are rounded up.
func withPlan(best []CurvePoint, at CurvePoint) []CurvePoint {
	i := slices.IndexFunc(best, func(p CurvePoint) bool { return p.Bytes > at.Bytes })
	if i < 0 {
		i = len(best)
	}
	if i > 0 && best[i-1].Time <= at.Time {
		return best
	}
	best = slices.Insert(best, i, at)
	return slices.DeleteFunc(best, func(p CurvePoint) bool { return p != at && p.Bytes >= at.Bytes && p.Time >= at.Time })
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
