package pipe_test

import (
	"errors"
	"fmt"
	"testing"

	"penstock/internal/torchtest"
	"penstock/nn"
	"penstock/pipe"
)

// A stage in which nothing is trained, because it is frozen or has no parameters, and nothing before it either, has no backward, so its chain has no layers: planning it failed with "layers: there are none". It runs
// once, and its budget is what that takes.
func TestOptimalStageThatIsNotTrained(t *testing.T) {
	const rows, chunks = 6, 3
	for _, row := range []struct {
		reason  string
		frozen  int // layers in front
		balance []int
	}{
		{"the first stage, wholly", 4, []int{4, 5}},
		{"the first stage, and the next in part", 6, []int{4, 5}},
		{"two stages", 6, []int{3, 3, 3}},
		{"a stage without parameters", 0, []int{1, 8}},
		{"all but the last layer", 8, []int{8, 1}},
		{"everything", 9, []int{4, 5}},
		{"everything, on one stage", 9, []int{9}},
	} {
		t.Run(row.reason, func(t *testing.T) {
			torchtest.Check(t)
			q := problem{
				model: func() *nn.Sequential {
					m := nn.NewSequential(nn.NewTanh(), nn.NewLinear(12, 20), nn.NewDropout(0.2), nn.NewLinear(20, 16), nn.NewTanh(), nn.NewLinear(16, 16), nn.NewTanh(), nn.NewLinear(16, 16), nn.NewLinear(16, 3))
					for _, l := range m.Layers()[:row.frozen] {
						for _, p := range nn.Params(l.Layer) {
							p.Freeze()
						}
					}
					return m
				},
				loss: nn.NewCrossEntropyLoss(nn.CrossEntropyConfig{}), input: normal(rows, 12), target: classes(rows, 3), rows: rows, steps: 2,
			}
			config := func(policy pipe.Checkpoint, budget ...int64) pipe.Config {
				return pipe.Config{Balance: row.balance, Chunks: chunks, Checkpoint: policy, Seed: 1, Budget: budget}
			}
			want, err := q.planned(config(pipe.Never))
			if err != nil {
				t.Fatal(err)
			}
			unbound, err := q.planned(config(pipe.Optimal))
			if err != nil {
				t.Fatal(err)
			}
			if d := want.differs(unbound.record); d != "" {
				t.Errorf("%s differs from the policy never", d)
			}
			var least []int64
			for at, s := range unbound.plans {
				budget := make([]int64, len(row.balance))
				budget[at] = s.Base + 1
				_, err := q.planned(config(pipe.Optimal, budget...))
				var short *pipe.BudgetError
				if !errors.As(err, &short) || short.Stage != at || short.Least <= budget[at] {
					t.Fatalf("stage %d with %d bytes: %v", at, budget[at], err)
				}
				least = append(least, short.Least)
			}
			got, err := q.planned(config(pipe.Optimal, least...))
			if err != nil {
				t.Fatalf("with %v bytes: %v", least, err)
			}
			if d := want.differs(got.record); d != "" {
				t.Errorf("with %v bytes: %s differs from the policy never", least, d)
			}
			for step, peaks := range got.peaks {
				for at, peak := range peaks {
					if peak > got.plans[at].Peak || got.plans[at].Peak > least[at] {
						t.Error(fmt.Sprintf("step %d, stage %d with %d bytes: %d bytes, planned %d", step, at, least[at], peak, got.plans[at].Peak))
					}
				}
			}
		})
	}
}
