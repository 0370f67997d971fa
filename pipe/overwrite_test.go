package pipe_test

import (
	"context"
	"reflect"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// adding is a layer of two that adds 1 to the second where it lies, which is not the same done
// twice, and multiplies.
type adding struct {
	nn.Base
	declared bool
}

func newAdding(declared bool) nn.Layer {
	l := &adding{declared: declared}
	return nn.Tuple(l, l.forward)
}

func (l *adding) OverwritesInput() bool { return l.declared }
func (l *adding) forward(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
	return []*torch.Tensor{c.Mul(xs[0], c.AddScalar_(xs[1], 1))}
}

// foo * (bar + 1) with foo = bar = 1, so that the gradient of foo is 2. A pipe that recomputes on
// what was overwritten gives 3. Ours finds a layer out that does not say that it overwrites,
// whether its input wants a gradient or not; to one that says so it gives a copy.
func TestAnOverwrittenInputIsNoWrongGradient(t *testing.T) {
	torchtest.Check(t)
	for _, policy := range policies {
		for _, balance := range [][]int{{2}, {1, 1}} {
			for _, declared := range []bool{false, true} {
				before := pairwise(func(_ *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor { return []*torch.Tensor{xs[0], xs[1]} })
				p := started(t, nn.NewSequential(before, newAdding(declared)), pipe.Config{Balance: balance, Checkpoint: policy})
				c := torch.NewCtx(torch.Options{})
				foo, bar := c.Ones(torch.Float32, 1).SetRequiresGrad(true), c.Ones(torch.Float32, 1)
				_, err := p.Step(context.Background(), pipe.Batch{Input: pipe.Rows(foo, bar), Target: pipe.Rows(foo)}, mean{})
				switch {
				case !declared:
					if err == nil || !strings.Contains(err.Error(),
						`layer "1" overwrote the stage's input`) || !strings.Contains(err.Error(), "let it declare nn.InPlace") {
						t.Errorf("%v, balance %v: got %v", policy, balance, err)
					}
				case err != nil:
					t.Errorf("%v, balance %v: %v", policy, balance, err)
				default:
					if g := torch.Values[float32](c.GradOf(foo)); !reflect.DeepEqual(g, []float32{2}) {
						t.Errorf("%v, balance %v: the gradient is %v, want 2", policy, balance, g)
					}
				}
				if v := torch.Item[float32](bar); declared && v != 1 {
					t.Errorf("%v, balance %v: the caller's tensor became %v", policy, balance, v)
				}
				foo.SetGradOf(nil)
				c.Close()
			}
		}
	}
}

func pairwise(f func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor) nn.Layer {
	return tuples(f)
}
