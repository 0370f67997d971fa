package plan_test

import (
	"math"
	"strings"
	"testing"

	"penstock.example/plan"
)

func TestByTimeAndBySizeRefuse(t *testing.T) {
	layers := []plan.Layer{{Name: "a"}, {Name: "b"}, {Name: "c"}}
	endless := []plan.Layer{{Forward: math.MaxFloat64, Backward: math.MaxFloat64}}
	for _, test := range []struct {
		layers []plan.Layer
		n      int
		time   plan.TimeConfig
		want   string
	}{
		{layers, 0, plan.TimeConfig{}, "the number of stages is 0; want 1 to the number of layers, 3"},
		{layers, 4, plan.TimeConfig{}, "the number of stages is 4"},
		{layers, 3, plan.TimeConfig{Recomputed: []float64{1, 0}}, "Recomputed is [1 0]: 2 for 3 stages"},
		{endless, 1, plan.TimeConfig{}, "more than a float64 holds"},
	} {
		if counts, _, err := plan.ByTime(test.layers, test.n, test.time); err == nil || !strings.Contains(err.Error(), test.want) || counts != nil {
			t.Errorf("got %v, %v, want an error with %q", counts, err, test.want)
		}
	}
	for _, test := range []struct {
		config plan.SizeConfig
		want   string
	}{
		{plan.SizeConfig{Held: make([]plan.Held, 3)}, "3 for 2 stages"},
		{plan.SizeConfig{Input: math.MaxInt64}, "no device does"},
	} {
		if counts, _, err := plan.BySize(layers, 2, test.config); err == nil || !strings.Contains(err.Error(), test.want) || counts != nil {
			t.Errorf("%+v: got %v, %v, want an error with %q", test.config, counts, err, test.want)
		}
	}
	for _, counts := range [][]int{{2}, {2, 2}, {3, 0}, {4, -1}, nil} {
		if sizes, err := plan.Sizes(layers, counts, plan.SizeConfig{}); err == nil || sizes != nil {
			t.Errorf("Sizes of %v: %v, %v", counts, sizes, err)
		}
	}
}
