package plan_test

import (
	"testing"

	"penstock.example/internal/must"
	"penstock.example/plan"
	"penstock.example/remat"
)

// A device may have any name: a plan of a chain has "device 0".
func TestNamesInText(t *testing.T) {
	c := remat.Chain{Layers: []remat.Layer{{Forward: 1, ForwardNoGrad: 1, Backward: 2, Output: 8, Saved: 16,
		Gradient: 8}}}
	for _, name := range []string{"device 0", "cpu:0", "gpu/1", "a=b", `"`, `\x20`, "Größe", "line\nbreak",
		"\t", "no\u00a0break", "\u2028", "<b>"} {
		p := plan.FromChain(c, []int{1}, []int{0}, 1)
		p.Devices[0].Name = name
		solved := must.Get(plan.Solve(t.Context(), p))(t)
		read, err := plan.Parse(solved.String())
		if err != nil {
			t.Errorf("%q: %v", name, err)
		} else if read.Devices[0].Name != name || read.String() != solved.String() {
			t.Errorf("%q is read as %q", name, read.Devices[0].Name)
		}
	}
	for _, text := range []string{`device %a`, "device cpu:0\nstage 0 device=%cpu"} {
		if _, err := plan.Parse(text); err == nil {
			t.Errorf("%s is read", text)
		}
	}
}
