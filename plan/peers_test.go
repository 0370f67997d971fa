package plan_test

import (
	"slices"
	"testing"

	"penstock.example/plan"
)

// What torchgpipe's tests cut, and what its block partition cuts badly: its bottlenecks are in the
// comments.
func TestPartitionOfKnownSequences(t *testing.T) {
	for _, test := range []struct {
		costs      []float64
		n          int
		want       []int
		bottleneck float64
	}{
		{[]float64{1, 2, 3, 4, 5, 6}, 2, []int{4, 2}, 11},
		{[]float64{0, 0}, 2, []int{1, 1}, 0},
		{equal(8, 1), 3, []int{3, 3, 2}, 3},                 // 4
		{equal(11, 1), 4, []int{3, 3, 3, 2}, 3},             // 5
		{equal(15, 1), 8, []int{2, 2, 2, 2, 2, 2, 2, 1}, 2}, // 8
	} {
		got, err := plan.Partition(test.costs, test.n)
		if err != nil || !slices.Equal(got, test.want) {
			t.Errorf("Partition(%v, %d) = %v, %v, want %v", test.costs, test.n, got, err, test.want)
			continue
		}
		if sums, err := plan.Sums(test.costs, got); err != nil || slices.Max(sums) != test.bottleneck {
			t.Errorf("Partition(%v, %d) has stages of %v, %v, want at most %v", test.costs, test.n, sums, err, test.bottleneck)
		}
	}
}

// Layers whose parameters grow while their activations shrink: where they are cut is decided by
// what is held of each, and the optimizer's state turns it over.
func TestBySizeWeighsParametersAgainstActivations(t *testing.T) {
	var layers []plan.Layer
	for i := range int64(6) {
		layers = append(layers, plan.Layer{Parameters: 1 + i, Trainable: 1 + i, Saved: 10 * (6 - i)})
	}
	for _, test := range []struct {
		reason string
		config plan.SizeConfig
		want   []int
	}{
		{"activations weigh more", plan.SizeConfig{}, []int{2, 4}},
		{"with an optimizer of much state parameters do", plan.SizeConfig{State: 100}, []int{4, 2}},
	} {
		got, sizes, err := plan.BySize(layers, 2, test.config)
		if err != nil || !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, %v, %v, want %v", test.reason, got, sizes, err, test.want)
		}
	}
}
