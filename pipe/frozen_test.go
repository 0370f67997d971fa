package pipe_test

import (
	"errors"
	"fmt"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/planner"
)

// A stage in which nothing is trained, because it is frozen or has no parameters, and nothing
// before it either, has no backward, so its chain has no layers: planning it failed with "layers:
// there are none". It runs once, and its budget is what that takes.
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
					m := nn.NewSequential(nn.NewTanh(), nn.NewLinear(12, 20), nn.NewDropout(0.2),
						nn.NewLinear(20, 16), nn.NewTanh(), nn.NewLinear(16, 16), nn.NewTanh(), nn.NewLinear(16,
							16), nn.NewLinear(16, 3))
					for _, l := range m.Layers()[:row.frozen] {
						for _, p := range nn.Params(l.Layer) {
							p.Freeze()
						}
					}
					return m
				},
				loss: nn.CrossEntropy(), input: normal(rows, 12), target: classes(rows, 3), rows: rows, steps: 2,
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
				var short *planner.MemoryError
				if !errors.As(err, &short) || short.Stages[0].Stage != at || short.Least() <= budget[at] {
					t.Fatalf("stage %d with %d bytes: %v", at, budget[at], err)
				}
				least = append(least, short.Least())
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
						t.Error(fmt.Sprintf("step %d, stage %d with %d bytes: %d bytes, planned %d", step, at,
							least[at], peak, got.plans[at].Peak))
					}
				}
			}
		})
	}
}

// TestLeastWithAPrologue: a frozen front that needs more than what is trained after it is part of
// the least that will do, which was said without it, and then failed again with more.
func TestLeastWithAPrologue(t *testing.T) {
	torchtest.Check(t)
	for _, balance := range [][]int{{7}, {1, 6}} {
		q := deepProblem()
		q.model = func() *nn.Sequential {
			m := nn.NewSequential(nn.NewLinear(12, 16), nn.NewLinear(16, 300), nn.NewTanh(), nn.NewLinear(300, 8),
				nn.NewLinear(8, 8), nn.NewTanh(), nn.NewLinear(8, 3))
			for _, l := range m.Layers()[:4] {
				for _, p := range nn.Params(l.Layer) {
					p.Freeze()
				}
			}
			return m
		}
		last := len(balance) - 1
		config := func(bytes int64) pipe.Config {
			budget := make([]int64, len(balance))
			budget[last] = bytes
			return pipe.Config{Balance: balance, Chunks: 3, Checkpoint: pipe.Optimal, Seed: 1, Budget: budget}
		}
		unbound, err := q.planned(config(0))
		if err != nil {
			t.Fatal(err)
		}
		_, err = q.planned(config(unbound.plans[last].Base + 1))
		least := shortages(t, err).Least()
		if _, err := q.planned(config(least)); err != nil {
			t.Errorf("%v: with %d bytes: %v", balance, least, err)
		}
		_, err = q.planned(config(least - 1))
		if n := shortages(t, err).Least(); n != least {
			t.Errorf("%v: the least is %d bytes and then %d", balance, least, n)
		}
	}
}
