package remat_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock.example/remat"
)

func parseOps(t testing.TB, s string) []remat.Op {
	t.Helper()
	list, err := remat.ParseOps(s)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestCheckCounts: bytes and times that were added up by hand from the package's doc.
func TestCheckCounts(t *testing.T) {
	keep := sample()
	keep.Carries, keep.GradientCarries = nil, nil
	for _, test := range []struct {
		reason string
		chain  remat.Chain
		ops    string
		want   remat.Report
	}{
		{"saving everything: x0 1, X1..X3 2 each, y3 1, then B2 makes y2", plain(3, 2), "S0 S1 S2 L B2 B1 B0", remat.Report{
			Peak: 9, PeakOp: 4, AtPeak: remat.Breakdown{Inputs: 1, Saved: 6, Gradients: 1, Made: 1}, Time: 9, Layers: []remat.Runs{{0, 1}, {0, 1}, {0, 1}},
			Resident: []int64{3, 5, 7, 8, 6, 4, 1}, Held: 7,
		}},
		{"computing everything again: the peak is B2's, x0 and x2 by themselves, X3 2, y3 and y2", plain(3, 2), "K0 F1 F2 L K0 F1 S2 B2 K0 S1 B1 S0 B0", remat.Report{
			Peak: 6, PeakOp: 7, AtPeak: remat.Breakdown{Inputs: 2, Saved: 2, Gradients: 1, Made: 1}, Time: 15, Layers: []remat.Runs{{3, 1}, {2, 1}, {1, 1}}, Recomputed: 6, Extra: 6,
			Resident: []int64{2, 2, 2, 2, 3, 3, 5, 2, 3, 5, 2, 4, 1}, Held: 1, // of what is there before the loss, x3 goes
		}},
		{"a layer with everything of another size; the forward's temporary is the peak", remat.Chain{Input: 1, InputGradient: 2, Loss: remat.Loss{1, 16}, Layers: []remat.Layer{
			{"a", 10, 5, 20, 4, 8, 64, 32, 3, 100, 1000, 0, 0}}}, "S0 L B0", remat.Report{
			Peak: 1 + 8 + 100 + 2 + 1000 + 3, PeakOp: 2, AtPeak: remat.Breakdown{Inputs: 1, Saved: 8, Gradients: 100, Made: 1002, Tmp: 3}, Time: 31, Layers: []remat.Runs{{0, 1}},
			Resident: []int64{9, 109, 1002}, Held: 9,
		}},
		{"without gradients first: x1 goes after the loss", remat.Chain{Input: 1, InputGradient: 2, Loss: remat.Loss{1, 16}, Layers: []remat.Layer{
			{"a", 10, 5, 20, 4, 8, 64, 320, 3, 5, 6, 0, 0}}}, "K0 L S0 B0", remat.Report{
			Peak: 1 + 4 + 320, PeakOp: 0, AtPeak: remat.Breakdown{Inputs: 1, Made: 4, Tmp: 320}, Time: 36, Layers: []remat.Runs{{1, 1}}, Recomputed: 1, Extra: 5,
			Resident: []int64{5, 6, 14, 8}, Held: 1,
		}},
		// x0 8 = 5 and a carry of 3 that x1 has too; x1 16 = 6 and a carry of 10 that x2 and x3 have too, and the 3.
		{"carries", sample(), "K0 F1 F2 F3 F4 L S0 K1 F2 F3 S4 B4 K1 F2 S3 B3 K1 S2 B2 S1 B1 B0", remat.Report{
			// K0 24. F1: 24+12, less x1's own 6: its 10 are in x2, its 3 in x0: 30. F2 30+14-12 = 32, F3 32+6-14-10 = 14, F4 14+3-6 = 11, L 11+3-3 = 11.
			// S0 51, K1 63, F2 63+14-12 = 65, F3 57, S4 62. B4: y4 6, weights 25, less X5 5, y5 3, x4 6: 79. K1 91, F2 93, S3 99. B3: y3 14, less X4 6 and x3 14; y4 stays as a part of y3: 93.
			// K1 105, S2 138. B2: y2 12, weights 2, tmp 4: 156; then less X3 33, y3's own 14, x2 12: 93. S1 105. B1: y1 16, less X2 12, y2 12: 97. In the end y0 4 and the weights' 36.
			Peak: 156, PeakOp: 18, AtPeak: remat.Breakdown{Inputs: 5 + 12, Saved: 76, Gradients: 20, WeightGradients: 25, Made: 14, Tmp: 4}, Time: 110.5,
			Layers: []remat.Runs{{1, 1}, {4, 1}, {3, 1}, {2, 1}, {1, 1}}, Recomputed: 11, Extra: 35,
			Resident: []int64{24, 30, 32, 14, 11, 11, 51, 63, 65, 57, 62, 79, 91, 93, 99, 93, 105, 138, 93, 105, 97, 40}, Held: 8,
		}},
		{"carries, saving everything", sample(), "S0 S1 S2 S3 S4 L B4 B3 B2 B1 B0", remat.Report{
			// x0 8; X1 40, X2 12, X3 33, X4 6, X5 5: 104. Loss: y5 3. B4: y4 6, all of it the carry to y1, and 25 of weights and 2: 140.
			// B3: without X5, y5: 104-5+6+25 = 130; y3 14: 144. B2: X4 goes: 138; but y4's 6 stay as a part of y3; y2 12, weights 2, tmp 4: 138+18 = 156.
			// B1: X3 goes, and y3's 14: 138+14-33-14 = 105; y1 16: 121. B0: X2 12 and y2's 12 go, the carry of y4 is a part of y1: 121-24 = 97; y0 4, weights 9, tmp 7: 117.
			Peak: 156, PeakOp: 8, AtPeak: remat.Breakdown{Inputs: 5, Saved: 88, Gradients: 14 + 6, WeightGradients: 25, Made: 14, Tmp: 4}, Time: 75.5, Layers: []remat.Runs{{0, 1}, {0, 1}, {0, 1}, {0, 1}, {0, 1}},
			Resident: []int64{48, 60, 93, 99, 104, 107, 130, 138, 105, 97, 40}, Held: 104,
		}},
	} {
		t.Run(test.reason, func(t *testing.T) {
			got, err := remat.Check(test.chain, parseOps(t, test.ops))
			if err != nil {
				t.Fatal(err)
			}
			if slices.Max(got.Peaks) != got.Peak || slices.Index(got.Peaks, got.Peak) != got.PeakOp || len(got.Peaks) != len(got.Resident) {
				t.Errorf("the peaks are %v, the greatest %d at operation %d", got.Peaks, got.Peak, got.PeakOp)
			}
			got.Peaks = nil
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
			if got.AtPeak.Total() != got.Peak {
				t.Errorf("the parts of the peak are %d, it is %d", got.AtPeak.Total(), got.Peak)
			}
		})
	}
}

// TestCheckRefuses: the first operation that is not allowed, and why.
func TestCheckRefuses(t *testing.T) {
	for _, test := range []struct {
		ops    string
		index  int
		early  bool
		reason string
	}{
		{"", 0, true, "the loss has not run"},
		{"S0 S1", 2, true, "the loss has not run"},
		{"S0 S1 L", 3, true, "backward of layer 1"},
		{"S0 S1 L B1", 4, true, "backward of layer 0"},
		{"L", 0, false, "x(2)"},
		{"S0 L", 1, false, "x(2)"},
		{"S1", 0, false, "x(1), which is not there"},
		{"S2", 0, false, "no layer 2; want 0 to 1"},
		{"F0 F0", 1, false, "x(0), which is not there"},
		{"F0 S1 L B1 S0", 4, false, "x(0), which is not there"},
		{"K0 K0", 1, false, "makes x(1), which is there"},
		{"K0 S0", 1, false, "makes x(1), which is there"},
		{"S0 K0", 1, false, "as a part of X(1)"},
		{"S0 S0", 1, false, "as a part of X(1)"},
		{"S0 S1 B1", 2, false, "y(2), which is not there"},
		{"S0 S1 L B0", 3, false, "y(1), which is not there"},
		{"S0 F1 L B1", 3, false, "X(2), which is not there"},
		{"S0 S1 L L", 3, false, "the loss has run before"},
		{"S0 S1 L B1 B1", 4, false, "y(2), which is not there"},
		{"S0 S1 L B1 B0 B0", 5, false, "complete before"},
		{"S0 S1 L B1 B0 K0", 5, false, "complete before"},
		{"K0 F1 L K0 B0", 4, false, "y(1)"},
		{"K0 F1 L S1", 3, false, "x(1), which is not there"},
	} {
		_, err := remat.Check(plain(2, 2), parseOps(t, test.ops))
		var invalid *remat.InvalidError
		if !errors.As(err, &invalid) {
			t.Errorf("%s: error %v", test.ops, err)
			continue
		}
		if invalid.Index != test.index || invalid.Early != test.early || !strings.Contains(invalid.Reason, test.reason) {
			t.Errorf("%s: %+v, want %q at %d", test.ops, invalid, test.reason, test.index)
		}
		if want := fmt.Sprintf("remat: operation %d, %v: %s", invalid.Index, invalid.Op, invalid.Reason); !test.early && err.Error() != want {
			t.Errorf("error %q, want %q", err, want)
		}
		if want := fmt.Sprintf("remat: the plan ends after %d operations: %s", invalid.Index, invalid.Reason); test.early && err.Error() != want {
			t.Errorf("error %q, want %q", err, want)
		}
	}
	for _, o := range []remat.Op{{Kind: -1}, {Kind: 9}, {Kind: remat.Backward, Layer: -1}, {Kind: remat.Forward, Layer: math.MaxInt}} {
		var invalid *remat.InvalidError
		if _, err := remat.Check(plain(2, 2), []remat.Op{o}); !errors.As(err, &invalid) || invalid.Index != 0 || invalid.Op != o {
			t.Errorf("%v: error %v", o, err)
		}
	}
}

func TestCheckPlan(t *testing.T) {
	c := plain(3, 2)
	good := remat.Plan{Feasible: true, Limit: 9, Peak: 9, Time: 9, LowerBound: 9, Ops: parseOps(t, "S0 S1 S2 L B2 B1 B0"), Chain: c.Fingerprint()}
	for _, test := range []struct {
		reason string
		spoil  func(*remat.Plan)
		want   string // "": nothing is wrong
	}{
		{"as it is", func(*remat.Plan) {}, ""},
		{"no limit", func(p *remat.Plan) { p.Limit = 0 }, ""},
		{"no fingerprint", func(p *remat.Plan) { p.Chain = "" }, ""},
		{"time within rounding", func(p *remat.Plan) { p.Time *= 1 + 1e-12 }, ""},
		{"another chain", func(p *remat.Plan) { p.Chain = sample().Fingerprint() }, "plan is for the chain " + sample().Fingerprint()},
		{"peak too low", func(p *remat.Plan) { p.Peak-- }, "the peak is 9 bytes, at operation 4, B2; the plan says 8"},
		{"peak too high", func(p *remat.Plan) { p.Peak++ }, "the plan says 10"},
		{"above the limit", func(p *remat.Plan) { p.Limit = 8 }, "above the plan's limit of 8"},
		{"time", func(p *remat.Plan) { p.Time *= 1 + 1e-8 }, "take 9 microseconds; the plan says 9.00000009"},
		{"no time", func(p *remat.Plan) { p.Time = math.NaN() }, "says NaN"},
		{"bound", func(p *remat.Plan) { p.LowerBound = 9.1 }, "lower bound is 9.1"},
		{"bound that is no number", func(p *remat.Plan) { p.LowerBound = math.NaN() }, "lower bound is NaN"},
		{"operations", func(p *remat.Plan) { p.Ops = p.Ops[:6] }, "ends after 6 operations"},
		{"not feasible with operations", func(p *remat.Plan) { p.Feasible = false }, "has 7 operations"},
		{"not feasible", func(p *remat.Plan) { *p = remat.Plan{Limit: 3, Peak: 6} }, ""},
		{"not feasible for nothing", func(p *remat.Plan) { *p = remat.Plan{Limit: 6, Peak: 6} }, "6 bytes at least and a limit of 6"},
	} {
		p := good
		test.spoil(&p)
		err := remat.CheckPlan(c, p)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: error %v, want %q", test.reason, err, test.want)
		}
	}
}
