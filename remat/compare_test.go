package remat_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock.example/remat"
	"penstock.example/remat/solver"
)

// segments is [remat.Sequential] with two segments, if there are as many layers.
func segments(layers int) []remat.Op {
	ops, err := remat.Sequential(layers, min(2, layers))
	if err != nil {
		panic(err)
	}
	return ops
}

func solveEach(c remat.Chain) func(context.Context, int64) (remat.Plan, error) {
	return func(ctx context.Context, limit int64) (remat.Plan, error) {
		return solver.Solve(ctx, c, limit, solver.Options{Slots: 60})
	}
}

// TestCompare: each baseline is a plan with the costs it says, none of a strategy beats another of the same, and the optimum is never slower nor larger.
func TestCompare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := chains(12).Draw(t, "chain")
		usual, err := remat.Baselines(c)
		if err != nil {
			t.Fatal(err)
		}
		compared, err := remat.Compare(context.Background(), usual, solveEach(c))
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]int{}
		for i, b := range compared {
			found[b.Strategy]++
			if i > 0 && b.Peak < compared[i-1].Peak {
				t.Fatalf("a peak of %d after one of %d", b.Peak, compared[i-1].Peak)
			}
			for _, p := range []remat.Plan{b.Optimum, {Feasible: true, Peak: b.Peak, Time: b.Time, Ops: b.Ops}} {
				if err := remat.CheckPlan(c, p); err != nil {
					t.Fatal(err)
				}
			}
			if b.Optimum.Peak > b.Peak || b.Optimum.LowerBound > b.Time*(1+1e-6) || b.Optimum.Time > 1.01*b.Time {
				t.Fatalf("%s with peak %d and time %v; the best plan takes %d and %v, at least %v", b.Strategy, b.Peak, b.Time, b.Optimum.Peak, b.Optimum.Time, b.Optimum.LowerBound)
			}
			if want := b.Time - b.Optimum.Time; b.Optimum.Time > 0 && (b.Gain*b.Optimum.Time < want-1e-6 || b.Gain*b.Optimum.Time > want+1e-6) {
				t.Fatalf("a gain of %v of %v to %v", b.Gain, b.Time, b.Optimum.Time)
			}
		}
		if found["none"] != 1 || found["all"] != 1 || len(c.Layers) > 1 && (found["sequential"] == 0 || found["revolve"] == 0) {
			t.Fatalf("%d layers: %v", len(c.Layers), found)
		}
	})
}

// TestCompareGains: what is known of equal layers. Sequential with 3 of 9 computes 6 layers again.
func TestCompareGains(t *testing.T) {
	c := plain(9, 3)
	usual, err := remat.Baselines(c)
	if err != nil {
		t.Fatal(err)
	}
	compared, err := remat.Compare(context.Background(), usual, solveEach(c))
	if err != nil {
		t.Fatal(err)
	}
	times := map[string]float64{}
	for _, b := range compared {
		name := b.Strategy
		if b.Segments == 3 {
			name = "sqrt"
		}
		if b.Checkpoints == 3 {
			name = "3 checkpoints"
		}
		times[name] = b.Time
		if b.Strategy == "none" && (b.Gain != 0 || b.Optimum.Time != b.Time) || b.Gain < 0 {
			t.Errorf("%s: gain %v", b.Strategy, b.Gain)
		}
	}
	if times["none"] != 27 || times["sqrt"] != 33 || times["all"] != 27+45 {
		t.Errorf("%v", times)
	}
	if want := 27.0 + 13; times["3 checkpoints"] != want { // 13 by the recurrence
		t.Errorf("revolve with 3 checkpoints takes %v, want %v: %v", times["3 checkpoints"], want, times)
	}
}

func TestCompareFails(t *testing.T) {
	usual := []remat.Baseline{{Strategy: "all", Ops: remat.All(9), Peak: 7, Time: 72}}
	oops := errors.New("oops")
	if _, err := remat.Compare(context.Background(), usual, func(context.Context, int64) (remat.Plan, error) { return remat.Plan{}, oops }); !errors.Is(err, oops) {
		t.Errorf("error %v", err)
	}
	_, err := remat.Compare(context.Background(), usual, func(context.Context, int64) (remat.Plan, error) { return remat.Plan{Peak: 8}, nil })
	if err == nil || !strings.Contains(err.Error(), "under 7 bytes") {
		t.Errorf("error %v", err)
	}
	if _, err := remat.Baselines(remat.Chain{}); err == nil {
		t.Error("baselines of a chain without layers")
	}
}

func TestExplain(t *testing.T) {
	c := plain(4, 3)
	list := parseOps(t, "K0 F1 S2 S3 L B3 B2 S0 S1 B1 B0")
	report := mustCheck(t, c, list)
	p := remat.Plan{Feasible: true, Limit: report.Peak, Peak: report.Peak, Time: report.Time, Ops: list}
	got, err := remat.Explain(context.Background(), c, p, remat.LeastLimit{}, []int64{2, 3, 100}, solveEach(c))
	if err != nil {
		t.Fatal(err)
	}
	want := []remat.LayerExplanation{
		{Name: "l0", Keeps: remat.KeepsInput, Recomputed: 1, Held: 1, Time: 4, Extra: 1},
		{Name: "l1", Keeps: remat.KeepsNothing, Recomputed: 1, Time: 4, Extra: 1},
		{Name: "l2", Keeps: remat.KeepsEverything, Held: 1 + 3, Time: 3},
		{Name: "l3", Keeps: remat.KeepsEverything, Held: 3, Time: 3},
	}
	if diff := cmp.Diff(want, got.Layers); diff != "" {
		t.Error(diff)
	}
	// Plain training: x0, 4 X, y4 and y3. The least: a layer's X, y before and after, x(i) and x0; layer 0's x(i) is x0, and the last layer's y(4) is there with no X but its own all the same.
	if least, err := solver.ExplainLeast(c); err != nil || got.Plain.Peak != 1+12+2 || least.Bytes != 7 || least.Parts.Total() != 7 || least.Op.Kind != remat.Backward {
		t.Errorf("greatest %d, least %+v, %v", got.Plain.Peak, least, err)
	}
	// To run only l0 again takes x0, x1, three X, and the last two y: 13 bytes.
	if diff := cmp.Diff([]remat.Step{{Limit: p.Limit + 2, Time: 14}, {Limit: p.Limit + 3, Time: 13, Saved: 1}, {Limit: p.Limit + 100, Time: 12, Saved: 2}}, got.More); diff != "" {
		t.Error(diff)
	}
}

// TestExplainAddsUp: what layers hold, and take, is what the plan does.
func TestExplainAddsUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := chains(6).Draw(t, "chain")
		n := len(c.Layers)
		list := rapid.SampledFrom([][]remat.Op{remat.None(n), remat.All(n), segments(n)}).Draw(t, "ops")
		report := mustCheck(t, c, list)
		e, err := remat.Explain(context.Background(), c, remat.Plan{Feasible: true, Peak: report.Peak, Time: report.Time, Ops: list}, remat.LeastLimit{}, []int64{0, 5}, solveEach(c))
		if err != nil {
			t.Fatal(err)
		}
		var held int64
		time, extra, again := c.Loss.Backward, 0.0, 0
		for _, l := range e.Layers {
			held, time, extra, again = held+l.Held, time+l.Time, extra+l.Extra, again+l.Recomputed
		}
		near := func(a, b float64) bool { return a-b < 1e-6 && b-a < 1e-6 }
		if held != report.Held || !near(time, report.Time) || !near(extra, report.Extra) || again != report.Recomputed {
			t.Fatalf("%d bytes, %v and %v us, %d times again; the plan: %+v", held, time, extra, again, report)
		}
		if e.More[0].Saved < 0 || e.More[1].Saved < e.More[0].Saved-0.01*report.Time {
			t.Fatalf("%+v", e)
		}
	})
}

// TestExplainOfMeasuredTimes: with times that are no whole numbers a layer that runs once took "-1.71e-13 us" more than it does in plain training.
func TestExplainOfMeasuredTimes(t *testing.T) {
	c := plain(4, 2)
	for i := range c.Layers {
		c.Layers[i].Forward, c.Layers[i].Backward = 946.737+0.1*float64(i), 1554.53/float64(i+3)
	}
	list := remat.None(4)
	report := mustCheck(t, c, list)
	e, err := remat.Explain(context.Background(), c, remat.Plan{Feasible: true, Peak: report.Peak, Time: report.Time, Ops: list}, remat.LeastLimit{}, nil, solveEach(c))
	if err != nil {
		t.Fatal(err)
	}
	for i, l := range e.Layers {
		if l.Extra != 0 {
			t.Errorf("layer %d runs once, in %v us, %v more than plain training takes", i, l.Time, l.Extra)
		}
	}
}

func TestExplainRefuses(t *testing.T) {
	c := plain(3, 2)
	if _, err := remat.Explain(context.Background(), c, remat.Plan{Limit: 3, Peak: 6}, remat.LeastLimit{}, nil, solveEach(c)); err == nil || !strings.Contains(err.Error(), "at least 6") {
		t.Errorf("error %v", err)
	}
	if _, err := remat.Explain(context.Background(), c, remat.Plan{Feasible: true, Ops: remat.None(3)}, remat.LeastLimit{}, nil, solveEach(c)); err == nil || !strings.Contains(err.Error(), "the plan says 0") {
		t.Errorf("error %v", err)
	}
}
