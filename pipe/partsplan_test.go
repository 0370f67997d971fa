package pipe_test

import (
	"fmt"
	"testing"

	"penstock.example/internal/draws"
	"penstock.example/internal/torchtest"
	"penstock.example/pipe"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// What waits for the gradients of weights is in the plan: under schedules with backwards in two
// parts no device holds more than was planned, which is not more than its budget.
func TestOptimalWithBackwardsInTwoParts(t *testing.T) {
	problems := planned(t)
	for name, balance := range map[string][]int{"gpt": {5, 11, 0}, "mlp": {3, 0}, "resnet20": {3, 4, 0}} {
		q := problems[name]
		last, sum := len(balance)-1, 0
		for _, n := range balance[:last] {
			sum += n
		}
		balance[last] = len(q.model().Layers()) - sum
		for schedule, generate := range map[string]schedule.Generator{"zb-h2": schedule.ZeroBubbleH2, "late": lateWeights} {
			if !draws.Full && (name == "resnet20" || name == "gpt" && schedule == "late") {
				continue
			}
			t.Run(fmt.Sprint(name, " ", schedule), func(t *testing.T) {
				torchtest.Check(t)
				const chunks = 5
				want := q.plainOn(torch.CPU(0), chunks, 1)
				config := func(budget ...int64) pipe.Config {
					return pipe.Config{Balance: balance, Chunks: chunks, Checkpoint: pipe.Optimal, Seed: 1, Budget: budget, Schedule: generate}
				}
				q.staysWithinBudgets(t, want, config, len(balance), 1, 0.3, 0)
			})
		}
	}
}
