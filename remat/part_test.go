package remat_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock.example/remat"
)

// A part of a chain is given what passes its borders. Here 5 of the input's 10 bytes go as far as x(3),
// and 3 bytes of the gradient of x(3) as far as y(1).
func TestPart(t *testing.T) {
	layer := func(name string, output, gradient int64) remat.Layer {
		return remat.Layer{Name: name, Output: output, Saved: output, Gradient: gradient}
	}
	c := remat.Chain{
		Input: 10, InputGradient: 2, Loss: remat.Loss{Tmp: 7},
		Layers:          []remat.Layer{layer("a", 20, 21), layer("b", 30, 31), layer("c", 40, 41)},
		Carries:         []remat.Carry{{From: -1, To: 3, Bytes: 5}},
		GradientCarries: []remat.Carry{{From: 0, To: 3, Bytes: 3}},
	}
	if diff := cmp.Diff(c, c.Part(0, 3)); diff != "" {
		t.Error(diff)
	}
	for _, test := range []struct {
		first, last int
		want        remat.Chain
	}{
		{0, 1, remat.Chain{Input: 10, InputGradient: 2, Layers: []remat.Layer{layer("a", 20, 24)},
			Carries: []remat.Carry{{From: -1, To: 1, Bytes: 5}}, GradientCarries: []remat.Carry{{From: 0,
				To: 1, Bytes: 3}}}},
		{1, 2, remat.Chain{Input: 25, InputGradient: 21, Layers: []remat.Layer{layer("b", 30, 34)},
			Carries: []remat.Carry{{From: -1, To: 1, Bytes: 5}}, GradientCarries: []remat.Carry{{From: -1,
				To: 1, Bytes: 3}}}},
		{1, 3, remat.Chain{Input: 25, InputGradient: 21, Loss: remat.Loss{Tmp: 7},
			Layers:  []remat.Layer{layer("b", 30, 31), layer("c", 40, 41)},
			Carries: []remat.Carry{{From: -1, To: 2, Bytes: 5}}, GradientCarries: []remat.Carry{{From: -1,
				To: 2, Bytes: 3}}}},
	} {
		got := c.Part(test.first, test.last)
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%d to %d: %s", test.first, test.last, diff)
		}
		if err := got.Check(); err != nil {
			t.Error(err)
		}
	}
}
