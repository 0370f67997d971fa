package pipe_test

import (
	"context"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// adding multiplies its first tensor by its second, to which it adds 1 in place.
type adding struct {
	nn.Base
	declared bool
}

func (l *adding) OverwritesInput() bool { return l.declared }
func (l *adding) forward(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
	return []*torch.Tensor{c.Mul(xs[0], c.AddScalar_(xs[1], 1))}
}

// The gradient of foo in foo * (bar + 1) is 2 for bar = 1, and 3 if a recomputation adds again. A layer
// that overwrites its input is refused, or gets a copy if it declares it.
func TestAnOverwrittenInputIsNoWrongGradient(t *testing.T) {
	torchtest.Check(t)
	for _, policy := range []pipe.Checkpoint{pipe.Never, pipe.Always} {
		for _, declared := range []bool{false, true} {
			first := tuples(func(_ *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor { return xs })
			l := &adding{declared: declared}
			model := nn.NewSequential(first, nn.Tuple(l, l.forward))
			p := started(t, model, pipe.Config{Balance: []int{1, 1}, Checkpoint: policy})
			c := torch.NewCtx(torch.Options{})
			foo, bar := c.Ones(torch.Float32, 1).SetRequiresGrad(true), c.Ones(torch.Float32, 1)
			_, err := p.Step(context.Background(),
				pipe.Batch{Input: pipe.Rows(foo, bar), Target: pipe.Rows(foo)}, mean{})
			if !declared && (err == nil ||
				!strings.Contains(err.Error(), `layer "1" overwrote the stage's input`)) {
				t.Errorf("%v: got %v", policy, err)
			}
			if declared && (err != nil || torch.Item[float32](c.GradOf(foo)) != 2 ||
				torch.Item[float32](bar) != 1) {
				t.Errorf("%v: %v, or another gradient than 2, or the caller's tensor has changed", policy,
					err)
			}
			foo.SetGradOf(nil)
			c.Close()
		}
	}
}

// A layer that works in place after one whose backward needs its output gives the same on every cut.
func TestInPlaceIsTheSameOnEveryCut(t *testing.T) {
	torchtest.Check(t)
	for name, layers := range map[string]func() []nn.Layer{
		"Tanh, ReLU": func() []nn.Layer { return []nn.Layer{nn.NewTanh(), nn.NewReLUInPlace()} },
		"ReLU, ReLU": func() []nn.Layer { return []nn.Layer{nn.NewReLUInPlace(), nn.NewReLUInPlace()} },
		"Tanh, Identity, Flatten, ReLU": func() []nn.Layer {
			return []nn.Layer{nn.NewTanh(), nn.NewIdentity(), nn.NewFlatten(1, -1), nn.NewReLUInPlace()}
		},
		"a recomputed layer, ReLU": func() []nn.Layer {
			return []nn.Layer{nn.Checkpointed(nn.NewTanh()), nn.NewReLUInPlace()}
		},
		"a residual path that ends with Sigmoid": func() []nn.Layer {
			return []nn.Layer{nn.NewSequential().AddResidual("",
				nn.NamedLayer{Name: "norm", Layer: nn.NewIdentity()},
				nn.NamedLayer{Name: "path", Layer: nn.NewSigmoid()})}
		},
	} {
		model := func() *nn.Sequential {
			return nn.NewSequential(append([]nn.Layer{nn.NewLinear(6, 6)}, layers()...)...)
		}
		q := problem{model: model, loss: nn.MSE(), input: normal(8, 6), target: normal(8, 6), rows: 8,
			steps: 2}
		want, n := q.plain(2, 3), len(model().Layers())
		for cut := 1; cut <= n; cut++ {
			balance := []int{cut, n - cut}
			if cut == n {
				balance = []int{n}
			}
			for _, policy := range []pipe.Checkpoint{pipe.Never, pipe.Always, pipe.Optimal} {
				got := q.piped(t, pipe.Config{Balance: balance, Chunks: 2, Checkpoint: policy, Seed: 3})
				if d := want.differs(got); d != "" {
					t.Errorf("%s, cut into %v, %v: %s differs from the plain loop", name, balance, policy, d)
				}
			}
		}
	}
}
