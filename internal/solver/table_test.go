package solver_test

import (
	"context"
	"math/rand/v2"
	"testing"

	"penstock.example/internal/must"
	. "penstock.example/internal/solver"
)

// TestCurve: no point beats another, every limit between has about the time of its plan, and the curve
// begins at the least limit and ends without recomputation.
func TestCurve(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, d := range append(kindsOfChains,
		dice{layers: 30, bytes: 1 << 30, weights: true, carries: 20, zeros: 0.1}) {
		for _, o := range []Options{{}, {Steps: -1, Slots: 1}, {Steps: -1, Slots: 7}, {Steps: -1}} {
			c := d.chain(r)
			curve := must.Get(Curve(context.Background(), c, o))(t)
			for i, p := range curve {
				if i > 0 && (p.Peak <= curve[i-1].Peak || p.Time >= curve[i-1].Time) {
					t.Fatalf("point %+v follows %+v", p, curve[i-1])
				}
				if best, err := Solve(context.Background(), c, p.Peak, Options{}); err != nil ||
					p.Time < best.Time*(1-1e-9) ||
					o.Steps == 0 && p.Time > best.Time*(1+1e-9) {
					t.Fatalf("point %+v of %+v; the best plan takes %v, %v", p, c, best.Time, err)
				}
			}
			least, _, err := Least(c)
			if err != nil {
				t.Fatal(err)
			}
			if last := curve[len(curve)-1]; curve[0].Peak != least.Peak || last.Peak > greatestOf(t, c) ||
				last.Time != c.Once() {
				t.Fatalf("the curve of %+v is %+v; want it from %d to %d", c, curve, least.Peak,
					greatestOf(t, c))
			}
		}
	}
}
