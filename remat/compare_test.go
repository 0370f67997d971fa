package remat_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock.example/internal/must"
	"penstock.example/internal/solver"
	"penstock.example/remat"
)

func solveEach(c remat.Chain) func(context.Context, int64) (remat.Plan, error) {
	return func(ctx context.Context, limit int64) (remat.Plan, error) {
		return solver.Solve(ctx, c, limit, solver.Options{Slots: 60})
	}
}

// TestBaselinesArePlans: each baseline is a plan with the costs it says, and the best plan at its peak
// is never slower nor larger.
func TestBaselinesArePlans(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := chains(12).Draw(t, "chain")
		usual := must.Get(remat.Baselines(c))(t)
		found, last := map[string]int{}, int64(0)
		for _, b := range usual {
			found[b.Strategy]++
			if b.Peak < last {
				t.Fatalf("a peak of %d after one of %d", b.Peak, last)
			}
			last = b.Peak
			best := must.Get(solveEach(c)(context.Background(), b.Peak))(t)
			for _, p := range []remat.Plan{best, {Feasible: true, Peak: b.Peak, Time: b.Time, Ops: b.Ops}} {
				must.Do(t, remat.CheckPlan(c, p))
			}
			if best.Peak > b.Peak || best.LowerBound > b.Time*(1+1e-6) || best.Time > 1.01*b.Time {
				t.Fatalf("%s with peak %d and time %v; the best plan takes %d and %v, at least %v",
					b.Strategy, b.Peak,
					b.Time, best.Peak, best.Time, best.LowerBound)
			}
		}
		if found["none"] != 1 || found["all"] != 1 || len(c.Layers) > 1 && found["sequential"] == 0 {
			t.Fatalf("%d layers: %v", len(c.Layers), found)
		}
	})
}

func TestExplain(t *testing.T) {
	c := plain(4, 3)
	list := parseOps(t, "K0 F1 S2 S3 L B3 B2 S0 S1 B1 B0")
	report := mustCheck(t, c, list)
	p := remat.Plan{Feasible: true, Limit: report.Peak, Peak: report.Peak, Time: report.Time, Ops: list}
	got := must.Get(remat.Explain(context.Background(), c, p, []int64{2, 3, 100}, solveEach(c)))(t)
	want := []remat.LayerExplanation{
		{Name: "l0", Keeps: "input", Recomputed: 1, Held: 1, Time: 4, Extra: 1},
		{Name: "l1", Keeps: "nothing", Recomputed: 1, Time: 4, Extra: 1},
		{Name: "l2", Keeps: "everything", Held: 1 + 3, Time: 3},
		{Name: "l3", Keeps: "everything", Held: 3, Time: 3},
	}
	if diff := cmp.Diff(want, got.Layers); diff != "" {
		t.Error(diff)
	}
	// Plain training: x0, 4 X, y4 and y3. The least: a layer's X, y before and after, x(i) and x0;
	// layer 0's x(i) is x0, and the last layer's y(4) is there with no X but its own all the same.
	if least, op, err := solver.Least(c); err != nil || got.Plain.Peak != 1+12+2 || least.Peak != 7 ||
		op.Kind != remat.Backward {
		t.Errorf("greatest %d, least %+v, %v", got.Plain.Peak, least, err)
	}
	// To run only l0 again takes x0, x1, three X, and the last two y: 13 bytes.
	if diff := cmp.Diff([]remat.Step{{Limit: p.Limit + 2, Time: 14},
		{Limit: p.Limit + 3, Time: 13, Saved: 1}, {Limit: p.Limit + 100, Time: 12, Saved: 2}},
		got.More); diff != "" {
		t.Error(diff)
	}
}
