package autoremat_test

import (
	"bytes"
	"testing"

	"penstock.example/autoremat"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/remat"
	"penstock.example/torch"
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
	for name, ops := range map[string]func(n int) []remat.Op{"none": remat.None, "all": remat.All, "sequential": sequential(t, 3)} {
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
	for name, ops := range map[string]func(n int) []remat.Op{"none": remat.None, "all": remat.All, "sequential": sequential(t, 3), "solved": nil} {
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

// Where the input is computed in front of the module, what computes it gets the gradient that it gets from the
// model alone: with the gaps that a Cat leaves, from which libtorch computes that of SiLU to other last
// bits, or dense where it comes through a border between layers.
func TestOperatorsInFrontGetTheModelsGradient(t *testing.T) {
	torchtest.Check(t)
	interleaved := func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		x = c.Reshape(x, 16, 37, 1)
		return c.Reshape(c.Cat([]*torch.Tensor{x, c.Detach(c.Tanh(x))}, 2), 16, 74)
	}
	same := func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return x }
	for _, layers := range [][]func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor{{interleaved}, {same, interleaved}} {
		q := problem{
			model: func() *nn.Sequential {
				var out []nn.Layer
				for _, f := range layers {
					out = append(out, layer(f))
				}
				return nn.NewSequential(append(out, nn.NewLinear(74, 5))...)
			},
			input: []int64{16, 37}, target: classes(16, 5), loss: nn.CrossEntropy(), inputGrad: true,
		}
		gradient := func(wrap func(c *torch.Ctx, m *nn.Sequential) wrapped) (of []byte) {
			q.with(wrap, func(c *torch.Ctx, w wrapped) {
				x, y := q.x(c, 0).SetRequiresGrad(true), q.target(c, 0)
				c.SetGrad(true)
				n := nn.NewCtx(c, nn.Config{Training: true, Seed: 5})
				loss := nn.RunLoss(n, q.loss, []*torch.Tensor{w.layer.Forward(n, c.SiLU(x))}, []*torch.Tensor{y})
				c.SetGrad(false)
				c.Backward([]*torch.Tensor{loss}, []*torch.Tensor{nil}, false)
				of = torch.Bytes(c.GradOf(x))
			})
			return of
		}
		want := gradient(plain)
		for name, ops := range map[string]func(n int) []remat.Op{"none": remat.None, "all": remat.All} {
			if !bytes.Equal(gradient(q.planned(t, autoremat.Config{Limit: 1 << 30}, ops)), want) {
				t.Errorf("%d layers in front, %s: the gradient differs", len(layers), name)
			}
		}
	}
}
