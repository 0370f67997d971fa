package remat_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock.example/remat"

	"penstock.example/remat/baselines"

	"penstock.example/remat/explain"

	"penstock.example/remat/planfile"
)

// FuzzParseChain: what is read is valid JSON and a checked chain, and comes out the same when it is written and read again.
func FuzzParseChain(f *testing.F) {
	f.Add(readTestdata(f, "sample.json"))
	f.Add(readTestdata(f, "plain.json"))
	f.Add([]byte(chainText(layerFields, lossFields, `,"carries":[],"input_gradient_bytes":0`)))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := planfile.ParseChain(data)
		if err != nil {
			return
		}
		if !json.Valid(data) {
			t.Fatal("it is no JSON")
		}
		text, err := planfile.FormatChain(c)
		if err != nil {
			t.Fatal(err)
		}
		again, err := planfile.ParseChain(text)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c, again); diff != "" {
			t.Fatal(diff)
		}
		if len(c.Layers) > 100 {
			return
		}
		if _, err := remat.Check(c, baselines.None(len(c.Layers))); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzParsePlan: likewise; and whatever is read can be checked and shown.
func FuzzParsePlan(f *testing.F) {
	f.Add(readTestdata(f, "plan.json"))
	f.Add([]byte(`{"version":1,"feasible":false,"limit_bytes":1,"peak_bytes":2,"time_us":0,"lower_bound_us":0,"ops":[]}`))
	c := plain(3, 2)
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := planfile.ParsePlan(data)
		if err != nil {
			return
		}
		if !json.Valid(data) {
			t.Fatal("it is no JSON")
		}
		text, err := planfile.FormatPlan(p)
		if err != nil {
			t.Fatal(err)
		}
		again, err := planfile.ParsePlan(text)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(p, again); diff != "" {
			t.Fatal(diff)
		}
		_ = p.String()
		if err := remat.CheckPlan(c, p); err == nil && p.Feasible {
			if _, err := explain.Draw(c, p.Ops, explain.DrawConfig{}); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// FuzzParseOps: what is read is written the same but for white space.
func FuzzParseOps(f *testing.F) {
	f.Add("K0 F1 S2 L B2 S0 S1 B1 B0")
	f.Add("\tL  S10\n")
	f.Add("S01 S-1 s1 L0 F")
	f.Fuzz(func(t *testing.T, s string) {
		list, err := remat.ParseOps(s)
		if err != nil {
			return
		}
		if got := remat.FormatOps(list); !bytes.Equal([]byte(got), bytes.Join(bytes.Fields([]byte(s)), []byte(" "))) {
			t.Fatalf("%q becomes %q", s, got)
		}
	})
}
