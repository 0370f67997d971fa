package plan_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"penstock.example/plan"
)

func TestByTimeAndBySizeRefuse(t *testing.T) {
	layers := []plan.Layer{{Name: "a"}, {Name: "b"}, {Name: "c"}}
	with := func(change func(l *plan.Layer)) []plan.Layer {
		changed := slices.Clone(layers)
		change(&changed[1])
		return changed
	}
	skip := func(from int, to ...int) []plan.LayerSkip { return []plan.LayerSkip{{From: from, To: to}} }
	tests := []struct {
		reason string
		layers []plan.Layer
		n      int
		time   plan.TimeConfig
		want   string
	}{
		{"no stage", layers, 0, plan.TimeConfig{}, "the number of stages is 0; want 1 to the number of layers, 3"},
		{"more stages than layers", layers, 4, plan.TimeConfig{}, "the number of stages is 4; want 1 to the number of layers, 3"},
		{"no layers", nil, 1, plan.TimeConfig{}, "the number of stages is 1; want 1 to the number of layers, 0"},
		{"not a number", with(func(l *plan.Layer) { l.Forward = math.NaN() }), 2, plan.TimeConfig{}, "Forward of layer 1 (b) is NaN; want a finite number"},
		{"infinite", with(func(l *plan.Layer) { l.Backward = math.Inf(1) }), 2, plan.TimeConfig{}, "Backward of layer 1 (b) is +Inf"},
		{"negative time", with(func(l *plan.Layer) { l.Name, l.Forward = "", -1 }), 2, plan.TimeConfig{}, "Forward of layer 1 is -1"},
		{"negative bytes", with(func(l *plan.Layer) { l.Saved = -8 }), 2, plan.TimeConfig{}, "Saved of layer 1 (b) is -8; want at least 0"},
		{"more trained than there is", with(func(l *plan.Layer) { l.Trainable = 4 }), 2, plan.TimeConfig{}, "Trainable of layer 1 (b) is 4; want a part of the 0 bytes of Parameters"},
		{"a sum beyond float64", with(func(l *plan.Layer) { l.Forward, l.Backward = math.MaxFloat64, math.MaxFloat64 }), 2, plan.TimeConfig{}, "cost of layer 1 is more than a float64 holds"},
		{"share", layers, 1, plan.TimeConfig{Recomputed: []float64{0, 1.5}}, "Recomputed is [0 1.5]: stage 1 has 1.5; want shares of the micro-batches, 0 to 1"},
		{"share is no number", layers, 1, plan.TimeConfig{Recomputed: []float64{math.NaN()}}, "stage 0 has NaN"},
		{"neither a share for each stage nor one for all", layers, 3, plan.TimeConfig{Recomputed: []float64{1, 0}}, "Recomputed is [1 0]: 2 for 3 stages"},
		{"transfer", layers, 1, plan.TimeConfig{SecondsPerByte: math.Inf(1)}, "SecondsPerByte is +Inf"},
		{"skip from nowhere", layers, 1, plan.TimeConfig{Skips: skip(3, 4)}, "number 0 is from layer 3; want one of 0 to 2"},
		{"skip to nowhere", layers, 1, plan.TimeConfig{Skips: skip(0)}, "number 0 goes from layer 0 to []; want at least one layer"},
		{"skip beyond the end", layers, 1, plan.TimeConfig{Skips: skip(0, 3)}, "from layer 0 to [3]"},
		{"skip to itself", layers, 1, plan.TimeConfig{Skips: skip(1, 1)}, "after 1"},
		{"skip backwards", layers, 1, plan.TimeConfig{Skips: skip(2, 0)}, "after 2"},
		{"pops in disorder", layers, 1, plan.TimeConfig{Skips: skip(0, 2, 1)}, "to [2 1]; want at least one layer, ascending"},
		{"skip of negative size", layers, 1, plan.TimeConfig{Skips: []plan.LayerSkip{{From: 0, To: []int{1}, Gradient: -4}}}, "number 0 has -4 bytes"},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			counts, costs, err := plan.ByTime(test.layers, test.n, test.time)
			if err == nil || !strings.Contains(err.Error(), test.want) || counts != nil || costs != nil {
				t.Errorf("got %v, %v, %v, want an error with %q", counts, costs, err, test.want)
			}
		})
	}
	for _, test := range []struct {
		config plan.SizeConfig
		want   string
	}{
		{plan.SizeConfig{Held: []plan.Held{{Graphs: -1}}}, "stage 0 has {-1 0}"},
		{plan.SizeConfig{Held: []plan.Held{{Graphs: 2}, {Graphs: 4, Inputs: -2}}}, "stage 1 has {4 -2}"},
		{plan.SizeConfig{Held: make([]plan.Held, 3)}, "3 for 2 stages"},
		{plan.SizeConfig{State: math.NaN()}, "State is NaN"},
		{plan.SizeConfig{State: -1}, "State is -1"},
		{plan.SizeConfig{Input: -1}, "Input is -1"},
		{plan.SizeConfig{Input: math.MaxInt64}, "no device does"},
		{plan.SizeConfig{Skips: skip(2, 0)}, "number 0 goes from layer 2 to [0]"},
		{plan.SizeConfig{Ties: []plan.LayerTie{{From: 2, To: []int{0}}}}, "number 0 goes from layer 2 to [0]"},
		{plan.SizeConfig{Ties: []plan.LayerTie{{From: 1, To: []int{2}, Gradient: -8}}}, "number 0 has -8 bytes"},
	} {
		if counts, sizes, err := plan.BySize(layers, 2, test.config); err == nil || !strings.Contains(err.Error(), test.want) || counts != nil || sizes != nil {
			t.Errorf("%+v: got %v, %v, %v, want an error with %q", test.config, counts, sizes, err, test.want)
		}
	}
	for _, counts := range [][]int{{2}, {2, 2}, {3, 0}, {4, -1}, nil} {
		if sizes, err := plan.Sizes(layers, counts, plan.SizeConfig{}); err == nil || sizes != nil {
			t.Errorf("Sizes of %v: %v, %v", counts, sizes, err)
		}
	}
}
