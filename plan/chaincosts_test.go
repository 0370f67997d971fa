package plan_test

import (
	"context"
	"slices"
	"testing"

	"penstock.example/internal/must"
	"penstock.example/plan"
	"penstock.example/remat"
	"penstock.example/schedule"
)

// Where only chains are known, the first part of a backward leaves the input of a layer that has
// weights, and the gradient of its output, to the second, which makes the gradients of the weights.
func TestChainsOfBackwardsInTwoParts(t *testing.T) {
	program := must.Get(schedule.Parse("program whole stages=1 micro-batches=2\nworker 0: 0F0 0I0 0F1 0I1 " +
		"0W0 0W1\n"))(t)
	for _, test := range []struct {
		name          string
		weights, want int64
	}{
		// 0W0 makes 100 bytes beside two inputs of 7 and two gradients of outputs of 10.
		{"weights", 100, 134},
		// 0I1 has its input, what is saved and the gradient of the output, and nothing is left of 0I0.
		{"no weights", 0, 27},
	} {
		later := remat.Chain{Input: 7, Layers: []remat.Layer{{Name: "a", Forward: 1, Backward: 1,
			Output: 10, Saved: 10, Gradient: 10}}}
		first := later
		first.Layers = []remat.Layer{later.Layers[0]}
		first.Layers[0].WeightGradient = test.weights
		plan := must.Get(plan.Solve(context.Background(), plan.Problem{
			Devices: []plan.ProblemDevice{{Name: "cpu:0"}}, Stages: []plan.Stage{{Layers: 1,
				Policy: plan.Optimal, Costs: plan.CostsOf(first)}},
			MicroBatches: 2, Schedule: schedule.Fixed(program),
		}))(t)
		if got := plan.Devices[0].Peak; got != test.want {
			t.Errorf("%s: %d bytes, want %d", test.name, got, test.want)
		}
	}
}

// Micro-batches after the first take the time of backwards that add to gradients.
func TestChainsOfLaterBackwards(t *testing.T) {
	c := remat.Chain{Layers: []remat.Layer{{Name: "a", Forward: 1, ForwardNoGrad: 1, Backward: 2,
		BackwardLater: 5}, {Name: "b", Forward: 1, ForwardNoGrad: 1, Backward: 3}}}
	plan := must.Get(plan.Solve(context.Background(), plan.FromChain(c, []int{2}, []int{0}, 3)))(t)
	var got []float64
	for _, m := range plan.Stages[0].MicroBatches {
		got = append(got, m.Backward)
	}
	if want := []float64{5, 8, 8}; !slices.Equal(got, want) {
		t.Errorf("backwards take %v, want %v", got, want)
	}
}
