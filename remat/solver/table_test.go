package solver_test

import (
	"context"
	"math/rand/v2"
	"testing"

	. "penstock.example/remat"
	. "penstock.example/remat/solver"
)

// TestCurveIsOfPlansThatExist looks that the points are what the plans of their limits are, that no
// point beats another, and that the curve begins at the least limit and ends without recomputation.
func TestCurveIsOfPlansThatExist(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, d := range append(kindsOfChains, dice{layers: 30, bytes: 1 << 30, weights: true, carries: 20, zeros: 0.1}) {
		for _, o := range []Options{{}, {Steps: -1, Slots: 1}, {Steps: -1, Slots: 7}, {Steps: -1}} {
			c := d.chain(r)
			table, err := NewTable(context.Background(), c, 0, o)
			if err != nil {
				t.Fatal(err)
			}
			curve := table.Curve()
			for i, p := range curve {
				plan := table.Plan(p.Limit)
				got, err := Check(c, plan.Ops)
				if err != nil {
					t.Fatal(err)
				}
				if p.Peak > p.Limit || got.Peak != p.Peak || got.Time-p.Time > 1e-9*p.Time || p.Time-got.Time > 1e-9*p.Time {
					t.Fatalf("point %+v of %+v; the plan has peak %d, time %v", p, c, got.Peak, got.Time)
				}
				if i > 0 && (p.Peak <= curve[i-1].Peak || p.Time >= curve[i-1].Time) {
					t.Fatalf("point %+v follows %+v", p, curve[i-1])
				}
			}
			least, at, err := Least(c)
			if err != nil {
				t.Fatal(err)
			}
			report, err := Check(c, least.Ops)
			if err != nil || report.Peak != least.Peak || report.PeakOp != at {
				t.Fatalf("least %d at operation %d of %+v: %+v, %v", least.Peak, at, c, report, err)
			}
			greatest, err := Greatest(c)
			if err != nil {
				t.Fatal(err)
			}
			plain := table.Plan(greatest)
			if last := curve[len(curve)-1]; curve[0].Peak != least.Peak || last.Peak > greatest || last.Time != plain.Time || len(plain.Ops) != 2*len(c.Layers)+1 {
				t.Fatalf("the curve of %+v is %+v; want it from %d to %d", c, curve, least.Peak, greatest)
			}
		}
	}
}
