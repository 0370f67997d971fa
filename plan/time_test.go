package plan_test

import (
	"slices"
	"testing"

	"penstock.example/plan"
)

func TestByTime(t *testing.T) {
	layer := plan.Layer{Forward: 1, Backward: 1}
	heavy := plan.Layer{Forward: 1, Backward: 1, Output: 8, Gradient: 8}
	dear := plan.Layer{Forward: 5, Backward: 5}
	tests := []struct {
		reason string
		layers []plan.Layer
		n      int
		config plan.TimeConfig
		want   []int
	}{
		{"a cut after a heavy output is avoided", []plan.Layer{layer, layer, heavy, layer}, 2, plan.TimeConfig{SecondsPerByte: 1}, []int{2, 2}},
		{"where transfers are free it is not", []plan.Layer{layer, heavy, layer, layer}, 2, plan.TimeConfig{}, []int{2, 2}},
		{"recomputation counts forward twice", []plan.Layer{{Forward: 4}, {Backward: 3}, {Backward: 3}}, 2, plan.TimeConfig{Recomputed: []float64{1}}, []int{1, 2}},
		{"without it the two are cut elsewhere", []plan.Layer{{Forward: 4}, {Backward: 3}, {Backward: 4}}, 2, plan.TimeConfig{}, []int{2, 1}},
		{"a stage that recomputes takes less", []plan.Layer{{Forward: 1}, {Forward: 1}, {Forward: 1}, {Forward: 1}, {Forward: 1}, {Forward: 1}}, 2,
			plan.TimeConfig{Recomputed: []float64{0, 1}}, []int{4, 2}},
		{"a skip from end to end is paid by the stage that pops it", []plan.Layer{layer, layer, layer, layer}, 3,
			plan.TimeConfig{SecondsPerByte: 1, Skips: []plan.LayerSkip{{From: 0, To: []int{3}, Bytes: 2, Gradient: 2}}}, []int{2, 1, 1}},
		{"equals are ordered after a skip that is popped twice", []plan.Layer{dear, layer, layer, layer}, 3,
			plan.TimeConfig{SecondsPerByte: 1, Skips: []plan.LayerSkip{{From: 0, To: []int{1, 2}}}}, []int{1, 2, 1}},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			got, costs, err := plan.ByTime(test.layers, test.n, test.config)
			if err != nil || !slices.Equal(got, test.want) {
				t.Errorf("got %v, %v, %v, want %v", got, costs, err, test.want)
			}
		})
	}
}
