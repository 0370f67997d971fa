package pipe_test

import (
	"fmt"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
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
