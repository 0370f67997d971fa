package autoremat_test

import (
	"testing"

	"penstock.example/autoremat"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/remat"
	"penstock.example/remat/baselines"
)

// mlp has dropout, batch norm, nested Sequentials and layers that work in place.
func mlp() problem {
	return problem{
		name: "mlp",
		model: func() *nn.Sequential {
			return nn.NewSequential(nn.NewLinear(20, 40), nn.NewReLUInPlace(), nn.NewSequential(nn.NewLinear(40, 40), nn.NewBatchNorm1d(40, nn.BatchNormConfig{}), nn.NewReLU(), nn.NewDropout(0.3)),
				nn.NewLinear(40, 40), nn.NewTanh(), nn.NewDropout(0.1), nn.NewLinear(40, 5))
		},
		input: []int64{16, 20}, target: classes(16, 5), loss: nn.CrossEntropy(),
	}
}

// However it is planned, a module's training is the model's, to the bit.
func TestModuleIsTheModel(t *testing.T) {
	for name, ops := range map[string]func(n int) []remat.Op{"none": baselines.None, "all": baselines.All, "sequential": sequential(t, 3)} {
		for _, inputGrad := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				torchtest.Check(t)
				q := mlp()
				q.inputGrad = inputGrad
				want := q.run(t, 3, plain, nil, nil)
				if d := want.differs(q.run(t, 3, q.planned(t, autoremat.Config{Limit: 1 << 30}, ops), nil, nil)); d != "" {
					t.Errorf("%s differs", d)
				}
			})
		}
	}
}

// Predictions are what the account sees, to the byte.
func TestPredictedIsMeasured(t *testing.T) {
	for name, ops := range map[string]func(n int) []remat.Op{"none": baselines.None, "all": baselines.All, "sequential": sequential(t, 3), "solved": nil} {
		t.Run(name, func(t *testing.T) {
			torchtest.Check(t)
			q := mlp()
			q.run(t, 4, q.planned(t, autoremat.Config{Limit: 1 << 30}, ops), func(int, wrapped) { device.ResetPeak() }, func(step int, w wrapped) {
				if got, want := device.Memory().Peak, w.m.Predicted(); got != want {
					t.Errorf("step %d: the peak is %d, predicted were %d", step, got, want)
				}
			})
		})
	}
}
