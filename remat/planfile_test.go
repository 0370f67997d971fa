package remat_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock.example/internal/must"
	"penstock.example/internal/planfile"
	"penstock.example/internal/strict"
	"penstock.example/remat"
)

// roundTrip writes a value, reads it and writes it again.
func roundTrip[T any](t rapid.TB, v T, format func(T) ([]byte, error), parse func([]byte) (T, error)) {
	t.Helper()
	text := must.Get(format(v))(t)
	got, err := parse(text)
	if diff := cmp.Diff(v, got); err != nil || diff != "" {
		t.Fatalf("%v %s", err, diff)
	}
	if again, err := format(got); err != nil || !bytes.Equal(again, text) {
		t.Fatalf("%v: written again:\n%s\nbefore:\n%s", err, again, text)
	}
}

// plans generates plans of any operations, few of which are allowed anywhere.
func plans() *rapid.Generator[remat.Plan] {
	ops := rapid.SliceOf(rapid.Custom(func(t *rapid.T) remat.Op {
		kind := remat.Kind(rapid.IntRange(int(remat.Forward), int(remat.Backward)).Draw(t, "kind"))
		if kind == remat.LossStep {
			return remat.Op{Kind: kind}
		}
		return remat.Op{Kind: kind, Layer: rapid.OneOf(rapid.IntRange(0, 3),
			rapid.IntRange(0, math.MaxInt32)).Draw(t, "layer")}
	}))
	return rapid.Custom(func(t *rapid.T) remat.Plan {
		list := ops.Draw(t, "ops")
		if len(list) == 0 {
			list = nil
		}
		return remat.Plan{
			Feasible: len(list) > 0, Limit: rapid.Int64Min(0).Draw(t,
				"limit"), Peak: rapid.Int64Min(0).Draw(t, "peak"),
			Time: rapid.Float64Range(0, math.MaxFloat64).Draw(t, "time"),
			LowerBound: rapid.Float64Range(0, 99).Draw(t,
				"bound"), Ops: list, Chain: rapid.SampledFrom([]string{"", sample().Fingerprint()}).Draw(t,
				"chain"),
		}
	})
}

func TestFilesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := chains(6).Draw(t, "chain")
		c.Model, c.Rows, c.Threads = rapid.SampledFrom([]string{"", "gpt", "gpt depth=2"}).Draw(t, "model"),
			rapid.IntRange(0, 9).Draw(t, "rows"), rapid.IntRange(0, 9).Draw(t, "threads")
		c.Devices = rapid.IntRange(0, 9).Draw(t, "devices")
		roundTrip(t, c, planfile.FormatChain, planfile.ParseChain)
		roundTrip(t, plans().Draw(t, "plan"), planfile.FormatPlan, planfile.ParsePlan)
	})
}

func TestFilesAreGolden(t *testing.T) {
	plan := remat.Plan{Feasible: true, Limit: 9, Peak: 8, Time: 11.5, LowerBound: 11,
		Ops: parseOps(t, "K0 F1 S2 L B2 S0 S1 B1 B0"), Chain: plain(3, 2).Fingerprint()}
	for name, format := range map[string]func() ([]byte, error){
		"sample.json": func() ([]byte, error) { return planfile.FormatChain(sample()) },
		"plain.json":  func() ([]byte, error) { return planfile.FormatChain(plain(3, 2)) },
		"plan.json":   func() ([]byte, error) { return planfile.FormatPlan(plan) },
	} {
		text := must.Get(format())(t)
		must.Match(t, name, string(text))
	}
}

const (
	chainText = `{"version":1,"input_bytes":9,"layers":[{"name":"a","forward_us":3,"backward_us":4e0,"output_bytes":5,"saved_bytes":6,` +
		`"forward_tmp_bytes":7,"backward_tmp_bytes":8}],"loss":{"tmp_bytes":1,"backward_us":2}}`
	planText = `{"version":1,"feasible":true,"limit_bytes":9,"peak_bytes":8,"time_us":7,"lower_bound_us":6,` +
		`"ops":[{"op":"forward_save","layer":0},{"op":"loss"},{"op":"backward","layer":0}]}`
)

// TestChainFileDefaults: what may be left out, and what it is then.
func TestChainFileDefaults(t *testing.T) {
	got, err := planfile.ParseChain([]byte(chainText))
	want := remat.Chain{Input: 9, InputGradient: 9, Loss: remat.Loss{Backward: 2, Tmp: 1},
		Layers: []remat.Layer{{Name: "a", Forward: 3, ForwardNoGrad: 3, Backward: 4, Output: 5, Saved: 6,
			ForwardTmp: 7, ForwardNoGradTmp: 7, BackwardTmp: 8, Gradient: 5}}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Error(err, diff)
	}
}

// TestFilesRefuse: package strict tests what no file may have.
func TestFilesRefuse(t *testing.T) {
	for _, test := range []struct{ reason, old, new, path, want string }{
		{"other version", `"version":1`, `"version":2`, "version", "want 1"},
		{"no layers", `"layers":`, `"layer":`, "layer", "unknown field"},
		{"no saved bytes", `"saved_bytes":6,`, ``, "layers[0]", `"saved_bytes" is missing`},
		{"other case", `"saved_bytes"`, `"Saved_Bytes"`, "layers[0].Saved_Bytes", "unknown"},
		{"twice", `"name":"a"`, `"name":"a","n\u0061me":"b"`, "layers[0].name", "duplicate"},
		{"null", `"forward_us":3`, `"forward_us":null`, "layers[0].forward_us", "null"},
		{"bytes with a fraction", `"output_bytes":5`, `"output_bytes":5.5`, "layers[0].output_bytes", "5.5"},
		{"bytes as text", `"output_bytes":5`, `"output_bytes":"5"`, "layers[0].output_bytes", "whole number"},
		{"negative bytes", `"output_bytes":5`, `"output_bytes":-5`, "layers[0].output_bytes", "-5 bytes"},
		{"no feasible", `"feasible":true,`, ``, "", `"feasible" is missing`},
		{"not feasible with operations", `true`, `false`, "feasible", "false with 3 operations"},
		{"unknown operation", `"forward_save"`, `"Forward_save"`, "ops[0].op", "forward_keep"},
		{"no layer", `"forward_save","layer":0`, `"forward_save"`, "ops[0]", "want a layer"},
		{"no operation", `"op":"forward_save",`, ``, "ops[0]", `"op" is missing`},
		{"loss of a layer", `"loss"}`, `"loss","layer":0}`, "ops[1]", "unless it is the loss"},
		{"a layer beyond any", `"backward","layer":0`, `"backward","layer":4294967296`, "ops[2].layer",
			"4294967296"},
	} {
		text, plan := chainText, strings.Contains(planText, test.old) &&
			!strings.Contains(chainText, test.old)
		if plan {
			text = planText
		}
		bad := []byte(strings.Replace(text, test.old, test.new, 1))
		_, err := planfile.ParseChain(bad)
		if plan {
			_, err = planfile.ParsePlan(bad)
		}
		path := ""
		var fault *strict.Error
		var chain *remat.ChainError
		if errors.As(err, &fault) {
			path = fault.Path
		} else if errors.As(err, &chain) {
			path = chain.Path
		}
		if err == nil || path != test.path || !strings.Contains(err.Error(), test.want) ||
			!strings.HasPrefix(err.Error(), "remat: ") {
			t.Errorf("%s: %v; want the path %q and %q", test.reason, err, test.path, test.want)
		}
	}
	for n := range chainText {
		if _, err := planfile.ParseChain([]byte(chainText[:n])); err == nil {
			t.Fatalf("the first %d bytes are read", n)
		}
	}
}

// FuzzParse: what is read is valid JSON, and comes out the same when it is written and read again.
// Chains and plans can be checked.
func FuzzParse(f *testing.F) {
	for _, name := range []string{"sample.json", "plain.json", "plan.json"} {
		f.Add(readTestdata(f, name))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, notChain := planfile.ParseChain(data)
		p, notPlan := planfile.ParsePlan(data)
		if notChain == nil {
			roundTrip(t, c, planfile.FormatChain, planfile.ParseChain)
			if len(c.Layers) < 100 {
				mustCheck(t, c, remat.None(len(c.Layers)))
			}
		}
		if notPlan == nil {
			roundTrip(t, p, planfile.FormatPlan, planfile.ParsePlan)
		}
		if (notChain == nil || notPlan == nil) && !json.Valid(data) {
			t.Fatal("it is no JSON")
		}
	})
}
