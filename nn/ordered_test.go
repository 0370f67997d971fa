package nn_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/torch"
)

// What layers and losses compute on CUDA is what PyTorch computes.
func TestParityAsOnCUDA(t *testing.T) {
	defer nn.AsOnCUDA()()
	var list []parityCase
	readJSON(t, "cases.json", &list)
	for _, p := range list {
		if !slices.Contains([]string{"CrossEntropyLoss", "NLLLoss", "AdaptiveAvgPool2d", "Upsample"}, p.Layer) {
			continue
		}
		t.Run(p.Name, func(t *testing.T) {
			c := nn.NewCtx(torchtest.New(t, torch.Options{Grad: true}), nn.Config{Training: p.Train})
			f := openFixture(t, p.File)
			if loss := buildLoss(t, p, f); loss != nil {
				checkLoss(t, c, f, loss)
				return
			}
			checkLayer(t, c, f, buildLayer(t, p.Layer, p.Args))
		})
	}
}

// Pools and interpolation compute on CUDA what they compute elsewhere, up to rounding, in the type of
// their input: of sizes that divide and of others.
func TestResizingAsOnCUDA(t *testing.T) {
	pool := func(h, w int64) nn.Layer { return nn.NewAdaptiveAvgPool2d(nn.Pair{h, w}) }
	bilinear := func(o nn.UpsampleConfig) nn.Layer {
		o.Bilinear = true
		return nn.NewUpsample(o)
	}
	for name, layer := range map[string]nn.Layer{
		"pool to divisors": pool(3, 4), "pool to others": pool(4, 5), "pool to more": pool(7, 9), "pool to 1x1": pool(1, 1),
		"by scale": bilinear(nn.UpsampleConfig{Scale: [2]float64{2, 2.5}}), "to a size": bilinear(nn.UpsampleConfig{Size: nn.Pair{13, 5}}),
		"with corners": bilinear(nn.UpsampleConfig{Size: nn.Pair{11, 16}, AlignCorners: true}),
	} {
		for dtype, tolerance := range map[torch.DType]float64{torch.Float32: 1e-6, torch.Float64: 1e-14, torch.BFloat16: 1. / 128} {
			for _, autocast := range []torch.Autocast{torch.AutocastOff, torch.AutocastBFloat16} {
				t.Run(fmt.Sprint(name, " of ", dtype, ", autocast ", autocast), func(t *testing.T) {
					c := torchtest.New(t, torch.Options{Grad: true, Autocast: autocast})
					x := c.To(c.Normal_(c.Empty(torch.Float32, 2, 3, 6, 8), 0, 1), dtype)
					precise := x
					if dtype == torch.BFloat16 { // a CPU's own kernels round in between
						precise = c.To(x, torch.Float32)
					}
					want, wantGrad := outputAndGrad(c, layer, precise)
					restore := nn.AsOnCUDA()
					got, gotGrad := outputAndGrad(c, layer, x)
					restore()
					for i, pair := range [][2]*torch.Tensor{{want, got}, {wantGrad, gotGrad}} {
						difference := largestDifference(c, pair[0], pair[1])
						if !slices.Equal(pair[0].Shape(), pair[1].Shape()) || pair[1].DType() != dtype || !(difference <= tolerance) {
							t.Errorf("output or gradient %d: %v differs from %v by %v of the largest", i, pair[1], pair[0], difference)
						}
					}
				})
			}
		}
	}
}

// Losses of classes at places have on CUDA the value and gradient that they have elsewhere, and
// refuse targets of another shape.
func TestLossesOfPlacesAsOnCUDA(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true})
	n := nn.NewCtx(c, nn.Config{})
	weights := []float32{1, 2, 0.5, 3}
	for name, loss := range map[string]nn.Loss{
		"cross entropy":      nn.CrossEntropy().Weight(weights).IgnoreIndex(1),
		"cross entropy, sum": nn.CrossEntropy().Sum().LabelSmoothing(0.1),
		"nll":                nn.NLL().Weight(weights).IgnoreIndex(1),
		"nll, sum":           nn.NLL().Sum(),
	} {
		for _, shape := range [][]int64{{2, 4, 5}, {2, 4, 3, 5}, {2, 4, 3, 1, 5}} {
			x := c.LogSoftmax(c.Normal_(c.Empty(torch.Float32, shape...), 0, 1), 1)
			places := slices.Concat(shape[:1], shape[2:])
			target := c.To(c.Uniform_(c.Empty(torch.Float32, places...), 0, 4), torch.Int64)
			layer := lossOf{loss: loss, target: target}
			want, wantGrad := outputAndGrad(c, &layer, x)
			restore := nn.AsOnCUDA()
			got, gotGrad := outputAndGrad(c, &layer, x)
			turned := c.Transpose(target, 1, -1)
			err := torch.Try(func() { loss.Forward(n, x, c.Zeros(torch.Int64, turned.Shape()...)) })
			restore()
			if d := max(largestDifference(c, want, got), largestDifference(c, wantGrad, gotGrad)); !(d <= 1e-6) || gotGrad.String() != wantGrad.String() {
				t.Errorf("%s of %v: differs by %v of the largest; the gradient is %v", name, shape, d, gotGrad)
			}
			if len(shape) > 3 && (err == nil || !strings.Contains(err.Error(), turned.String()[len("int64"):])) {
				t.Errorf("%s of %v and a target of %v: %v", name, shape, turned, err)
			}
		}
	}
}

// lossOf is a loss with its target, as a layer.
type lossOf struct {
	nn.Base
	loss   nn.Loss
	target *torch.Tensor
}

func (l *lossOf) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	return l.loss.Forward(c, x, l.target)
}

// outputAndGrad runs a layer, and backward with the sum of the squares of what it gives.
func outputAndGrad(c *torch.Ctx, l nn.Layer, x *torch.Tensor) (output, grad *torch.Tensor) {
	x = c.Detach(x).SetRequiresGrad(true)
	output = l.Forward(nn.NewCtx(c, nn.Config{Training: true}), x)
	c.Backward([]*torch.Tensor{output}, []*torch.Tensor{c.Detach(output)}, false)
	grad = c.Clone(c.GradOf(x))
	x.SetGradOf(nil)
	return output, grad
}

// largestDifference is the largest difference of two tensors' elements, as a part of the largest.
func largestDifference(c *torch.Ctx, want, got *torch.Tensor) (difference float64) {
	largest := 0.0
	w, g := torch.Values[float64](c.To(c.Detach(want), torch.Float64)), torch.Values[float64](c.To(c.Detach(got), torch.Float64))
	for i := range min(len(w), len(g)) {
		largest, difference = max(largest, math.Abs(w[i])), max(difference, math.Abs(w[i]-g[i]))
	}
	return difference / largest
}
