package plan_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"penstock.example/internal/must"
	"penstock.example/plan"
)

func ExamplePartition() {
	times := []float64{4, 2, 2, 2, 2, 4, 6} // milliseconds per layer
	counts, err := plan.Partition(times, 3)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(counts)
	// Output: [3 3 1]
}

func equal(layers int, cost float64) []float64 {
	return slices.Repeat([]float64{cost}, layers)
}

func TestPartition(t *testing.T) {
	tests := []struct {
		reason string
		costs  []float64
		n      int
		want   []int
	}{
		{"one stage takes all", []float64{3, 1, 2}, 1, []int{3}},
		{"a stage per layer", []float64{3, 1, 2}, 3, []int{1, 1, 1}},
		{"one layer", []float64{7}, 1, []int{1}},
		{"equal layers that do not divide: no stage of one but the last", equal(15, 1), 8,
			[]int{2, 2, 2, 2, 2, 2, 2, 1}},
		// torchgpipe's balancer gives 2 2 4, and above 1 1 1 1 1 1 1 8, four times the bottleneck.
		{"the same for eight over three", equal(8, 1), 3, []int{3, 3, 2}},
		{"least squares before earliest: not 6 6 4", equal(16, 1), 3, []int{6, 5, 5}},
		{"a tenth is not a binary fraction, equal costs are equal all the same", equal(16, 0.1), 3,
			[]int{6, 5, 5}},
		{"equal costs stay equal when a whole number of units does not fit", equal(1000, 1.0/3), 7,
			[]int{143, 143, 143, 143, 143, 143, 142}},
		{"a dear layer alone leaves the others to be even", []float64{1, 1, 1, 1, 10, 1, 1, 1, 1}, 4,
			[]int{4, 1, 2, 2}},
		{"bottleneck before evenness", []float64{5, 5, 1, 8}, 2, []int{2, 2}},
		{"the tie goes to the earlier stage", []float64{1, 1, 1}, 2, []int{2, 1}},
		{"free layers count as layers", equal(5, 0), 3, []int{3, 1, 1}},
		{"free layers at the end still fill a stage each", []float64{4, 4, 0, 0}, 4, []int{1, 1, 1, 1}},
		{"a free layer between goes to the earlier stage", []float64{4, 0, 4}, 2, []int{2, 1}},
		{"costs at the top of the range", equal(4, math.MaxFloat64), 2, []int{2, 2}},
		{"costs at the bottom of the range", equal(4, math.SmallestNonzeroFloat64), 2, []int{2, 2}},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			costs := slices.Clone(test.costs)
			got := must.Get(plan.Partition(costs, test.n))(t)
			if !slices.Equal(got, test.want) {
				t.Errorf("Partition(%v, %d) = %v, want %v", test.costs, test.n, got, test.want)
			}
			if !slices.Equal(costs, test.costs) {
				t.Errorf("Partition changed its costs to %v", costs)
			}
		})
	}
}

func TestPartitionRefuses(t *testing.T) {
	tests := []struct {
		costs []float64
		n     int
		want  string
	}{
		{equal(3, 1), 0, "the number of stages is 0; want 1 to the number of layers, 3"},
		{equal(3, 1), 4, "the number of stages is 4; want 1 to the number of layers, 3"},
		{nil, 1, "the number of stages is 1; want 1 to the number of layers, 0"},
		{[]float64{1, math.NaN()}, 1, "the cost of layer 1 is NaN"},
		{[]float64{1, 2, math.Inf(1)}, 2, "the cost of layer 2 is +Inf"},
		{[]float64{-0.5, 2}, 2, "the cost of layer 0 is -0.5"},
	}
	for _, test := range tests {
		counts, err := plan.Partition(test.costs, test.n)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("Partition(%v, %d) = %v, %v, want an error with %q", test.costs, test.n, counts, err,
				test.want)
		}
	}
}

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
		{endless, 1, plan.TimeConfig{}, "exceeds a float64"},
	} {
		if counts, _, err := plan.ByTime(test.layers, test.n, test.time); err == nil ||
			!strings.Contains(err.Error(), test.want) || counts != nil {
			t.Errorf("got %v, %v, want an error with %q", counts, err, test.want)
		}
	}
	held := plan.SizeConfig{Held: make([]plan.Held, 3)}
	if _, _, err := plan.BySize(layers, 2, held); err == nil ||
		!strings.Contains(err.Error(), "3 for 2 stages") {
		t.Errorf("got %v", err)
	}
}
