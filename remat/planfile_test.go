package remat_test

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock.example/remat"

	"penstock.example/remat/planfile"
)

// ops generates lists of operations, of which few are allowed anywhere.
func ops() *rapid.Generator[[]remat.Op] {
	return rapid.SliceOf(rapid.Custom(func(t *rapid.T) remat.Op {
		kind := remat.Kind(rapid.IntRange(int(remat.Forward), int(remat.Backward)).Draw(t, "kind"))
		if kind == remat.LossStep {
			return remat.Op{Kind: kind}
		}
		return remat.Op{Kind: kind, Layer: rapid.OneOf(rapid.IntRange(0, 3), rapid.IntRange(0, math.MaxInt32)).Draw(t, "layer")}
	}))
}

func plans() *rapid.Generator[remat.Plan] {
	return rapid.Custom(func(t *rapid.T) remat.Plan {
		list := ops().Draw(t, "ops")
		if len(list) == 0 {
			list = nil
		}
		return remat.Plan{
			Feasible: len(list) > 0, Limit: rapid.Int64Min(0).Draw(t, "limit"), Peak: rapid.Int64Min(0).Draw(t, "peak"), Time: rapid.Float64Range(0, math.MaxFloat64).Draw(t, "time"),
			LowerBound: rapid.Float64Range(0, 99).Draw(t, "bound"), Ops: list, Chain: rapid.SampledFrom([]string{"", sample().Fingerprint()}).Draw(t, "chain"),
		}
	})
}

func TestPlanFileRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := plans().Draw(t, "plan")
		text, err := planfile.FormatPlan(p)
		if err != nil {
			t.Fatal(err)
		}
		got, err := planfile.ParsePlan(text)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(p, got); diff != "" {
			t.Fatal(diff)
		}
		if again, err := planfile.FormatPlan(got); err != nil || !bytes.Equal(again, text) {
			t.Fatalf("%v: written again:\n%s\nbefore:\n%s", err, again, text)
		}
	})
}

func TestPlanFileIsGolden(t *testing.T) {
	list, err := remat.ParseOps("K0 F1 S2 L B2 S0 S1 B1 B0")
	if err != nil {
		t.Fatal(err)
	}
	p := remat.Plan{Feasible: true, Limit: 9, Peak: 8, Time: 11.5, LowerBound: 11, Ops: list, Chain: plain(3, 2).Fingerprint()}
	text, err := planfile.FormatPlan(p)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "plan.json", string(text))
}

func TestPlanFileRefuses(t *testing.T) {
	good := `{"version":1,"feasible":true,"limit_bytes":9,"peak_bytes":8,"time_us":7,"lower_bound_us":6,"ops":[{"op":"forward_save","layer":0},{"op":"loss"},{"op":"backward","layer":0}]}`
	if _, err := planfile.ParsePlan([]byte(good)); err != nil {
		t.Fatal(err)
	}
	swap := func(old, new string) string {
		if strings.Count(good, old) != 1 {
			t.Fatalf("%d of %s in %s", strings.Count(good, old), old, good)
		}
		return strings.Replace(good, old, new, 1)
	}
	for _, test := range []struct {
		reason, text, path string
		want               []string
	}{
		{"no feasible", swap(`"feasible":true,`, ``), "", []string{`"feasible" is missing`}},
		{"no limit", swap(`"limit_bytes":9,`, ``), "", []string{`"limit_bytes" is missing`}},
		{"no lower bound", swap(`"lower_bound_us":6,`, ``), "", []string{`"lower_bound_us" is missing`}},
		{"feasible as number", swap(`true`, `1`), "feasible", []string{"1", "true or false"}},
		{"not feasible with operations", swap(`true`, `false`), "", []string{"false with 3 operations"}},
		{"feasible without operations", good[:strings.Index(good, "[")] + "[]}", "", []string{"true with 0 operations"}},
		{"fingerprint", swap(`"version":1`, `"version":1,"chain":"ABC"`), "chain", []string{`"ABC"`, "32 hexadecimal"}},
		{"unknown operation", swap(`"forward_save"`, `"Fall"`), "ops[0].op", []string{`"Fall"`, "forward_keep"}},
		{"operation in other case", swap(`"forward_save"`, `"Forward_save"`), "ops[0].op", []string{"forward_save"}},
		{"operation in short", swap(`{"op":"forward_save","layer":0}`, `"S0"`), "ops[0]", []string{`"S0"`, "an object"}},
		{"no layer", swap(`"forward_save","layer":0`, `"forward_save"`), "ops[0]", []string{"forward_save has no layer"}},
		{"no operation", swap(`"op":"forward_save",`, ``), "ops[0]", []string{`"op" is missing`}},
		{"loss of a layer", swap(`"loss"`, `"loss","layer":0`), "ops[1]", []string{"the loss has a layer"}},
		{"negative layer", swap(`"backward","layer":0`, `"backward","layer":-1`), "ops[2].layer", []string{"-1"}},
		{"a layer beyond any", swap(`"backward","layer":0`, `"backward","layer":4294967296`), "ops[2].layer", []string{"4294967296"}},
		{"negative time", swap(`"time_us":7`, `"time_us":-7`), "time_us", []string{"-7"}},
		{"trailing", good + " x", "", []string{"follows the plan"}},
	} {
		p, err := planfile.ParsePlan([]byte(test.text))
		path, reason := where(t, err)
		if path != test.path {
			t.Errorf("%s: path %q, want %q: %v", test.reason, path, test.path, err)
		}
		for _, want := range test.want {
			if !strings.Contains(reason, want) {
				t.Errorf("%s: no %q in %v", test.reason, want, err)
			}
		}
		if p.Ops != nil {
			t.Errorf("%s: there is a plan", test.reason)
		}
	}
	for n := range good {
		if _, err := planfile.ParsePlan([]byte(good[:n])); err == nil {
			t.Fatalf("the first %d of %d bytes are read without an error", n, len(good))
		}
	}
}

// TestPlanFileIsNotWritten: what could not be read again.
func TestPlanFileIsNotWritten(t *testing.T) {
	for reason, p := range map[string]remat.Plan{
		"NaN":                 {Time: math.NaN()},
		"no bound":            {LowerBound: math.Inf(1)},
		"negative limit":      {Limit: -1},
		"negative peak":       {Peak: -1},
		"feasible":            {Feasible: true},
		"not feasible":        {Ops: []remat.Op{{Kind: remat.LossStep}}},
		"unknown kind":        {Feasible: true, Ops: []remat.Op{{Kind: 5}}},
		"negative kind":       {Feasible: true, Ops: []remat.Op{{Kind: -1}}},
		"negative layer":      {Feasible: true, Ops: []remat.Op{{Kind: remat.Backward, Layer: -1}}},
		"no fingerprint":      {Chain: "x"},
		"a long layer number": {Feasible: true, Ops: []remat.Op{{Layer: math.MaxInt}}},
	} {
		if text, err := planfile.FormatPlan(p); err == nil || !strings.HasPrefix(err.Error(), "remat: ") {
			t.Errorf("%s: %s, %v", reason, text, err)
		}
	}
}
