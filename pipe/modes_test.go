package pipe_test

import (
	"fmt"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// thawing is a model of norms, dropout and a tied parameter, of which parts are frozen, unfrozen and
// set to evaluation between its steps.
func thawing() problem {
	const rows = 6
	body := func(m *nn.Sequential) *nn.Sequential { return m.Slice(0, 6) }
	return problem{
		model: func() *nn.Sequential {
			tied := nn.NewLinear(16, 16)
			return nn.NewSequential(nn.NewLinear(12, 16), nn.NewBatchNorm1d(16, nn.BatchNormConfig{}), nn.NewTanh(),
				tied, nn.NewDropout(0.3), nn.NewSequential(nn.NewBatchNorm1d(16, nn.BatchNormConfig{Cumulative: true}), nn.NewTanh()),
				nn.NewLinear(16, 16), nn.NewGELU(), nn.NewLinearShared(tied.Weight, true), nn.NewBatchNorm1d(16, nn.BatchNormConfig{}),
				nn.NewLinear(16, 3))
		},
		loss: nn.CrossEntropy(), input: normal(rows, 12), target: classes(rows, 3), rows: rows, steps: 6,
		before: func(step int, m *nn.Sequential) {
			switch step {
			case 1:
				nn.Freeze(body(m))
			case 2:
				nn.Eval(body(m))
			case 3:
				nn.Unfreeze(m)
			case 4:
				nn.Freeze(m.Slice(0, 3))
				nn.Train(m)
			case 5:
				nn.Freeze(m)
				m.Layers()[11].Layer.(*nn.Linear).Weight.Unfreeze()
				nn.Eval(m)
			}
		},
	}
}

// Whatever is frozen and runs as in evaluation between two steps, and however the model is cut and
// recomputed: weights, gradients and running statistics are those of the plain loop.
func TestModesBetweenSteps(t *testing.T) {
	for _, balance := range [][]int{{12}, {5, 7}, {2, 6, 4}} {
		for _, policy := range []pipe.Checkpoint{pipe.Never, pipe.ExceptLast, pipe.Always, pipe.Optimal} {
			for _, deferred := range []bool{false, true} {
				t.Run(fmt.Sprint(balance, policy, deferred), func(t *testing.T) {
					torchtest.Check(t)
					q := thawing()
					q.deferred = deferred
					want := q.plain(3, 1)
					got := q.piped(t, pipe.Config{Balance: balance, Chunks: 3, Checkpoint: policy, DeferredBatchNorm: deferred, Seed: 1})
					if d := want.differs(got); d != "" {
						t.Errorf("%s differs from the plain loop", d)
					}
				})
			}
		}
	}
}

// The account of each device sees what is planned, to the byte, after each of the changes.
func TestPredictedPeaksAfterModesChange(t *testing.T) {
	for _, balance := range [][]int{{12}, {5, 7}, {2, 6, 4}} {
		torchtest.Check(t)
		if wrong := thawing().predicted(t, onDevices(pipe.Config{Balance: balance, Chunks: 3, Checkpoint: pipe.Optimal, Seed: 1})); wrong != "" {
			t.Errorf("%v: %s", balance, wrong)
		}
	}
}

// In several processes too, which all set the same.
func TestModesInSeveralProcesses(t *testing.T) {
	torchtest.Check(t)
	q := thawing()
	for _, policy := range []pipe.Checkpoint{pipe.ExceptLast, pipe.Optimal} {
		cfg := pipe.Config{Balance: []int{5, 7}, Chunks: 3, Checkpoint: policy, Seed: 1}
		want := q.apart(t, cfg, 1)
		if d := want.differs(q.apart(t, cfg, 2)); d != "" {
			t.Errorf("%s: %s differs from one process", policy, d)
		}
	}
}

// A frozen body in evaluation keeps its running statistics in training, and has no gradients.
func TestAFrozenBodyKeepsItsStatistics(t *testing.T) {
	torchtest.Check(t)
	q := thawing()
	q.steps = 2
	q.before = func(step int, m *nn.Sequential) { nn.Freeze(m.Slice(0, 6)); nn.Eval(m.Slice(0, 6)) }
	got := q.piped(t, pipe.Config{Balance: []int{5, 7}, Chunks: 3, Seed: 1})
	c := torch.NewCtx(torch.Options{Device: torchtest.Device(0)})
	defer c.Close()
	fresh := q.model()
	defer nn.Free(fresh)
	nn.Materialise(c, nn.State(fresh), 1)
	for i, p := range nn.State(fresh) {
		inBody := strings.HasPrefix(p.Name, "0.") || strings.HasPrefix(p.Name, "1.") || strings.HasPrefix(p.Name, "3.") || strings.HasPrefix(p.Name, "5.")
		same := string(got.values[p.Name]) == string(torch.Bytes(p.Tensor()))
		if same != inBody {
			t.Errorf("%d, %s: is as it began: %v", i, p.Name, same)
		}
	}
}
