package pipe_test

import (
	"errors"
	"fmt"
	"testing"

	"penstock/internal/torchtest"
	"penstock/pipe"
	"penstock/planner"
	"penstock/schedule"
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
			t.Run(fmt.Sprint(name, " ", schedule), func(t *testing.T) {
				torchtest.Check(t)
				const chunks = 5
				want := q.plain(chunks, 1)
				config := func(budget ...int64) pipe.Config {
					return pipe.Config{Balance: balance, Chunks: chunks, Checkpoint: pipe.Optimal, Seed: 1, Budget: budget, Schedule: generate}
				}
				unbound, err := q.planned(config(0))
				if err != nil {
					t.Fatal(err)
				}
				var least []int64
				for at, s := range unbound.plans {
					budget := make([]int64, len(balance))
					budget[at] = s.Base + 1
					_, err = q.planned(config(budget...))
					var short *planner.MemoryError
					if !errors.As(err, &short) || short.Stages[0].Stage != at {
						t.Fatalf("stage %d with %d bytes: %v", at, s.Base+1, err)
					}
					least = append(least, short.Least())
				}
				for _, share := range []float64{1, 0.3, 0} {
					var budget []int64
					for at, s := range unbound.plans {
						budget = append(budget, least[at]+int64(share*float64(s.Peak-least[at])))
					}
					got, err := q.planned(config(budget...))
					if err != nil {
						t.Errorf("with %v bytes: %v", budget, err)
						continue
					}
					if d := want.differs(got.record); d != "" {
						t.Errorf("with %v bytes: %s differs from the plain loop", budget, d)
					}
					for step, peaks := range got.peaks {
						for at, peak := range peaks {
							if plan := got.plans[at].Peak; peak > budget[at] || plan > budget[at] || share < 1 && peak > plan {
								t.Errorf("stage %d with %d bytes, step %d: %d bytes, planned %d", at, budget[at], step, peak, plan)
							}
						}
					}
				}
			})
		}
	}
}
