package balance_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"penstock/balance"
)

func TestBordersRefuse(t *testing.T) {
	layers := []balance.Layer{{Name: "a"}, {Name: "b"}, {Name: "c"}}
	with := func(change func(l *balance.Layer)) []balance.Layer {
		changed := slices.Clone(layers)
		change(&changed[1])
		return changed
	}
	skip := func(from int, to ...int) []balance.Skip { return []balance.Skip{{From: from, To: to}} }
	tests := []struct {
		reason string
		layers []balance.Layer
		n      int
		time   balance.TimeConfig
		want   string
	}{
		{"no stage", layers, 0, balance.TimeConfig{}, "0 stages: there must be at least one"},
		{"more stages than layers", layers, 4, balance.TimeConfig{}, "4 stages for 3 layers: a stage needs at least one layer, ask for at most 3"},
		{"no layers", nil, 1, balance.TimeConfig{}, "1 stages for 0 layers"},
		{"not a number", with(func(l *balance.Layer) { l.Forward = math.NaN() }), 2, balance.TimeConfig{}, "layer 1 (b) takes NaN s in forward"},
		{"infinite", with(func(l *balance.Layer) { l.Backward = math.Inf(1) }), 2, balance.TimeConfig{}, "layer 1 (b) takes +Inf s in backward"},
		{"negative time", with(func(l *balance.Layer) { l.Name, l.Forward = "", -1 }), 2, balance.TimeConfig{}, "layer 1 takes -1 s in forward"},
		{"negative bytes", with(func(l *balance.Layer) { l.Saved = -8 }), 2, balance.TimeConfig{}, "layer 1 (b) has -8 bytes of saved activations"},
		{"more trained than there is", with(func(l *balance.Layer) { l.Trainable = 4 }), 2, balance.TimeConfig{}, "0 bytes of parameters and 4 of trainable"},
		{"a sum beyond float64", with(func(l *balance.Layer) { l.Forward, l.Backward = math.MaxFloat64, math.MaxFloat64 }), 2, balance.TimeConfig{}, "cost of layer 1 is more than a float64 holds"},
		{"share", layers, 1, balance.TimeConfig{Recomputed: []float64{0, 1.5}}, "share of 1.5"},
		{"share is no number", layers, 1, balance.TimeConfig{Recomputed: []float64{math.NaN()}}, "share of NaN"},
		{"neither a share for each stage nor one for all", layers, 3, balance.TimeConfig{Recomputed: []float64{1, 0}}, "2 shares of recomputed micro-batches for 3 stages"},
		{"transfer", layers, 1, balance.TimeConfig{SecondsPerByte: math.Inf(1)}, "+Inf seconds per byte"},
		{"skip from nowhere", layers, 1, balance.TimeConfig{Skips: skip(3, 4)}, "skip 0 comes from layer 3: want one of 0 to 2"},
		{"skip to nowhere", layers, 1, balance.TimeConfig{Skips: skip(0)}, "skip 0, from layer 0, goes nowhere"},
		{"skip beyond the end", layers, 1, balance.TimeConfig{Skips: skip(0, 3)}, "from layer 0 to layers [3]"},
		{"skip to itself", layers, 1, balance.TimeConfig{Skips: skip(1, 1)}, "after 1"},
		{"skip backwards", layers, 1, balance.TimeConfig{Skips: skip(2, 0)}, "after 2"},
		{"pops in disorder", layers, 1, balance.TimeConfig{Skips: skip(0, 2, 1)}, "[2 1]: want them ascending"},
		{"skip of negative size", layers, 1, balance.TimeConfig{Skips: []balance.Skip{{From: 0, To: []int{1}, Gradient: -4}}}, "-4 of gradient"},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			counts, costs, err := balance.ByTime(test.layers, test.n, test.time)
			if err == nil || !strings.Contains(err.Error(), test.want) || counts != nil || costs != nil {
				t.Errorf("got %v, %v, %v, want an error with %q", counts, costs, err, test.want)
			}
		})
	}
	for _, test := range []struct {
		config balance.SizeConfig
		want   string
	}{
		{balance.SizeConfig{Held: []balance.Held{{Graphs: -1}}}, "-1 graphs"},
		{balance.SizeConfig{Held: []balance.Held{{Graphs: 2}, {Graphs: 4, Inputs: -2}}}, "4 graphs and -2 inputs"},
		{balance.SizeConfig{Held: make([]balance.Held, 3)}, "3 numbers of micro-batches held for 2 stages"},
		{balance.SizeConfig{State: math.NaN()}, "keeps NaN times"},
		{balance.SizeConfig{State: -1}, "keeps -1 times"},
		{balance.SizeConfig{Input: -1}, "input of -1 bytes"},
		{balance.SizeConfig{Input: math.MaxInt64}, "there is no such device"},
		{balance.SizeConfig{Skips: skip(2, 0)}, "skip 0 goes from layer 2 to layers [0]"},
		{balance.SizeConfig{Ties: []balance.Tie{{From: 2, To: []int{0}}}}, "tie 0 goes from layer 2 to layers [0]"},
		{balance.SizeConfig{Ties: []balance.Tie{{From: 1, To: []int{2}, Gradient: -8}}}, "tie 0, from layer 1, has 0 bytes and -8 of gradient"},
	} {
		if counts, sizes, err := balance.BySize(layers, 2, test.config); err == nil || !strings.Contains(err.Error(), test.want) || counts != nil || sizes != nil {
			t.Errorf("%+v: got %v, %v, %v, want an error with %q", test.config, counts, sizes, err, test.want)
		}
	}
	for _, counts := range [][]int{{2}, {2, 2}, {3, 0}, {4, -1}, nil} {
		if times, err := balance.Times(layers, counts, balance.TimeConfig{}); err == nil || times != nil {
			t.Errorf("Times of %v: %v, %v", counts, times, err)
		}
		if sizes, err := balance.Sizes(layers, counts, balance.SizeConfig{}); err == nil || sizes != nil {
			t.Errorf("Sizes of %v: %v, %v", counts, sizes, err)
		}
	}
}
