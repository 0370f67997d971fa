package remat_test

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock.example/internal/must"
	"penstock.example/remat"
)

func parseOps(t testing.TB, s string) []remat.Op {
	t.Helper()
	return must.Get(remat.ParseOps(s))(t)
}

// TestCheckCounts: bytes and times that were added up by hand from the package's doc.
func TestCheckCounts(t *testing.T) {
	for _, test := range []struct {
		reason string
		chain  remat.Chain
		ops    string
		want   remat.Report
	}{
		{"saving everything: x0 1, X1..X3 2 each, y3 1, then B2 makes y2", plain(3, 2),
			"S0 S1 S2 L B2 B1 B0", remat.Report{
				Peak: 9, PeakOp: 4, Time: 9,
			}},
		{"computing everything again: the peak is B2's, x0 and x2 by themselves, X3 2, y3 and y2",
			plain(3, 2),
			"K0 F1 F2 L K0 F1 S2 B2 K0 S1 B1 S0 B0",
			remat.Report{Peak: 6, PeakOp: 7, Time: 15, Recomputed: 6, Extra: 6}},
		// x0 8 = 5 and a carry of 3 that x1 has too; x1 16 = 6 and a carry of 10 that x2 and x3 have
		// too, and the 3.
		{"carries", sample(), "K0 F1 F2 F3 F4 L S0 K1 F2 F3 S4 B4 K1 F2 S3 B3 K1 S2 B2 S1 B1 B0",
			remat.Report{
				// K0 24. F1: 24+12, less x1's own 6: its 10 are in x2, its 3 in x0: 30. F2 30+14-12 = 32,
				// F3 32+6-14-10 = 14, F4 14+3-6 = 11, L 11+3-3 = 11. S0 51, K1 63, F2 63+14-12 = 65, F3 57,
				// S4 62. B4: y4 6, weights 25, less X5 5, y5 3, x4 6: 79. K1 91, F2 93, S3 99. B3: y3 14,
				// less X4 6 and x3 14; y4 stays as a part of y3: 93. K1 105, S2 138. B2: y2 12, weights 2,
				// tmp 4: 156.
				Peak: 156, PeakOp: 18, Time: 110.5, Recomputed: 11, Extra: 35,
			}},
	} {
		got := must.Get(remat.Check(test.chain, parseOps(t, test.ops)))(t)
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s: %s", test.reason, diff)
		}
	}
}

// TestCheckRefuses: the first operation that is not allowed, and why.
func TestCheckRefuses(t *testing.T) {
	for ops, want := range map[string]string{
		"S0 S1":            "the plan ends after 2 operations: the loss has not run",
		"S0 S1 L":          "the plan ends after 3 operations: the backward of layer 1",
		"S0 L":             "operation 1, L: the loss needs x(2)",
		"S1":               "operation 0, S1: it needs x(1), which is not there",
		"S2":               "operation 0, S2: there is no layer 2; want 0 to 1",
		"F0 S1 L B1 S0":    "operation 4, S0: it needs x(0), which is not there",
		"S0 K0":            "operation 1, K0: it makes x(1), which is there",
		"S0 S1 B1":         "operation 2, B1: it needs y(2), which is not there",
		"S0 F1 L B1":       "operation 3, B1: it needs X(2), which is not there",
		"S0 S1 L L":        "operation 3, L: the loss has run before",
		"S0 S1 L B1 B0 K0": "operation 5, K0: the plan was complete before",
	} {
		if _, err := remat.Check(plain(2, 2), parseOps(t, ops)); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", ops, err, want)
		}
	}
	for _, o := range []remat.Op{{Kind: -1}, {Kind: 9}, {Kind: remat.Backward, Layer: -1},
		{Kind: remat.Forward, Layer: math.MaxInt}} {
		if _, err := remat.Check(plain(2, 2), []remat.Op{o}); err == nil ||
			!strings.Contains(err.Error(), "there is no") {
			t.Errorf("%v: error %v", o, err)
		}
	}
}

func TestCheckPlan(t *testing.T) {
	c := plain(3, 2)
	good := remat.Plan{Feasible: true, Limit: 9, Peak: 9, Time: 9, LowerBound: 9,
		Ops: parseOps(t, "S0 S1 S2 L B2 B1 B0"), Chain: c.Fingerprint()}
	for _, test := range []struct {
		reason string
		spoil  func(*remat.Plan)
		want   string // "": nothing is wrong
	}{
		{"as it is", func(*remat.Plan) {}, ""},
		{"no limit", func(p *remat.Plan) { p.Limit = 0 }, ""},
		{"no fingerprint", func(p *remat.Plan) { p.Chain = "" }, ""},
		{"time within rounding", func(p *remat.Plan) { p.Time *= 1 + 1e-12 }, ""},
		{"another chain", func(p *remat.Plan) { p.Chain = sample().Fingerprint() },
			"plan is for the chain " + sample().Fingerprint()},
		{"peak too low", func(p *remat.Plan) { p.Peak-- },
			"the peak is 9 bytes, at operation 4, B2; the plan says 8"},
		{"above the limit", func(p *remat.Plan) { p.Limit = 8 }, "the plan says 9, under a limit of 8"},
		{"time", func(p *remat.Plan) { p.Time *= 1 + 1e-8 }, "take 9 microseconds; the plan says 9.00000009"},
		{"bound", func(p *remat.Plan) { p.LowerBound = 9.1 }, "lower bound is 9.1"},
		{"operations", func(p *remat.Plan) { p.Ops = p.Ops[:6] }, "ends after 6 operations"},
		{"not feasible", func(p *remat.Plan) { *p = remat.Plan{Limit: 3, Peak: 6} }, ""},
		{"not feasible for nothing", func(p *remat.Plan) { *p = remat.Plan{Limit: 6, Peak: 6} },
			"a peak of 6 bytes and a limit of 6"},
	} {
		p := good
		test.spoil(&p)
		err := remat.CheckPlan(c, p)
		if test.want == "" && err != nil || test.want != "" &&
			(err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: error %v, want %q", test.reason, err, test.want)
		}
	}
}
