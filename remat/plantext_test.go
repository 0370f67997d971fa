package remat_test

import (
	"testing"

	"penstock.example/remat"
)

func TestPlanString(t *testing.T) {
	list := parseOps(t, "K0 F1 F2 F3 L K0 F1 F2 S3 B3 K0 F1 S2 B2 K0 S1 B1 S0 B0")
	for want, p := range map[string]remat.Plan{
		"19 operations, peak 6 bytes of 7, 17.25 us (no plan takes less than 17)\n     0  K0 F1 F2 F3 L  K0 F1 F2 S3 B3 K0 F1 S2 B2 K0 S1\n    16  B1 S0 B0\n": {
			Feasible: true, Limit: 7, Peak: 6, Time: 17.25, LowerBound: 17, Ops: list},
		"1 operations, peak 6 bytes, no limit, 1 us (no plan takes less than 1)\n     0  L\n": {Feasible: true, Peak: 6, Time: 1, LowerBound: 1, Ops: list[4:5]},
		"not feasible: 6 bytes of 5\n": {Limit: 5, Peak: 6},
	} {
		if got := p.String(); got != want {
			t.Errorf("got\n%swant\n%s", got, want)
		}
	}
}
