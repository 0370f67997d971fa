package remat_test

import (
	"fmt"
	"strings"
	"testing"

	"penstock.example/internal/must"
	"penstock.example/remat"
)

func TestBaselines(t *testing.T) {
	sequential := func(layers, segments int) []remat.Op {
		return must.Get(remat.Sequential(layers, segments))(t)
	}
	for _, test := range []struct {
		reason string
		got    []remat.Op
		want   string
	}{
		{"save everything", remat.None(3), "S0 S1 S2 L B2 B1 B0"},
		{"keep the input", remat.All(3), "K0 F1 F2 L K0 F1 S2 B2 K0 S1 B1 S0 B0"},
		{"one segment, which is the last", sequential(3, 1), "S0 S1 S2 L B2 B1 B0"},
		{"two segments of 2 and 3 layers", sequential(5, 2), "K0 F1 S2 S3 S4 L B4 B3 B2 S0 S1 B1 B0"},
	} {
		if got := fmt.Sprint(test.got); got != "["+test.want+"]" {
			t.Errorf("%s: got %s, want %s", test.reason, got, test.want)
		}
		layers := 0
		for _, o := range test.got {
			layers = max(layers, o.Layer+1)
		}
		if _, err := remat.Check(plain(layers, 2), test.got); err != nil {
			t.Errorf("%s: %v", test.reason, err)
		}
	}
	for _, segments := range []int{-1, 0, 4} {
		if list, err := remat.Sequential(3, segments); err == nil ||
			!strings.Contains(err.Error(), "want 1 to 3") {
			t.Errorf("%d segments: %v, error %v", segments, list, err)
		}
	}
}

func mustCheck(t must.T, c remat.Chain, list []remat.Op) remat.Report {
	return must.Get(remat.Check(c, list))(t)
}
