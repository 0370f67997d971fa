package report_test

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock.example/planner"
	"penstock.example/report"
)

// A plan's point lies on the curve of its step, whatever the estimate of the curve is, and the curve falls.
func TestThePlanLiesOnItsStepCurve(t *testing.T) {
	plan := planPage(t, 2, 4).Run.Plan
	rapid.Check(t, func(t *rapid.T) {
		var best []planner.LimitPoint
		limit, step := int64(0), 4*plan.Step()
		for range rapid.IntRange(1, 8).Draw(t, "points") {
			limit += rapid.Int64Range(1, 3*plan.Devices[0].Peak/4).Draw(t, "bytes")
			step -= time.Duration(rapid.Int64Range(0, int64(step)/3).Draw(t, "faster"))
			best = append(best, planner.LimitPoint{Limit: limit, Step: step})
		}
		c := report.NewStepCurve(best, plan, 2*plan.Step())
		if !slices.Contains(c.Best, c.Chosen) {
			t.Fatalf("%+v is not on %+v", c.Chosen, c.Best)
		}
		for i, p := range c.Best[1:] {
			if p.Bytes <= c.Best[i].Bytes || p.Time > c.Best[i].Time {
				t.Fatalf("%+v does not fall", c.Best)
			}
		}
		for _, b := range best { // what is known beyond the plan's bytes stays, where it is faster
			if b.Limit > c.Chosen.Bytes && b.Step < plan.Step() && !slices.Contains(c.Best, report.CurvePoint{Bytes: b.Limit, Time: 2 * float64(b.Step) / float64(time.Microsecond)}) {
				t.Fatalf("%+v lacks %+v", c.Best, b)
			}
		}
	})
}
