package nn_test

import (
	"fmt"
	"slices"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/torch"
)

// A layer that works in place gives the gradients of one that does not, whatever came before it.
func TestInPlaceAfterALayerThatNeedsItsOutput(t *testing.T) {
	leaky := func(inPlace bool) nn.Layer { return nn.NewLeakyReLU(0.5, inPlace) }
	relu := func(inPlace bool) nn.Layer {
		if inPlace {
			return nn.NewReLUInPlace()
		}
		return nn.NewReLU()
	}
	own := func(inPlace bool) nn.Layer {
		return doing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Op("aten::exp", x) })
	}
	always := func(l func() nn.Layer) func(bool) nn.Layer { return func(bool) nn.Layer { return l() } }
	for name, before := range map[string]func(inPlace bool) nn.Layer{
		"Tanh": always(nn.NewTanh), "Sigmoid": always(nn.NewSigmoid), "ReLU": relu, "LeakyReLU": leaky,
		"Softmax":              always(func() nn.Layer { return nn.NewSoftmax(1) }),
		"LogSoftmax":           always(func() nn.Layer { return nn.NewLogSoftmax(1) }),
		"Checkpointed":         always(func() nn.Layer { return nn.Checkpointed(nn.NewLinear(4, 4)) }),
		"a layer of one's own": own,
		"a Sequential":         always(func() nn.Layer { return nn.NewSequential(nn.NewTanh()) }),
	} {
		for pass, between := range map[string][]func() nn.Layer{
			"": nil, "Identity": {nn.NewIdentity},
			"Dropout(0)": {func() nn.Layer { return nn.NewDropout(0) }},
			"Flatten":    {func() nn.Layer { return nn.NewFlatten(1, -1) }},
			"a Tuple": {func() nn.Layer {
				return nn.Tuple(nn.NewIdentity(),
					func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor { return slices.Clone(xs) })
			}},
			"a skip": {func() nn.Layer { return nn.NewStash("s") }, func() nn.Layer { return popping("s") }},
		} {
			for last, inPlace := range map[string]func(bool) nn.Layer{"ReLU": relu, "LeakyReLU": leaky} {
				gradients := func(does bool) string {
					c := torchtest.New(t, torch.Options{Grad: true, Seed: 1})
					model := nn.NewSequential(nn.NewLinear(4, 4), before(does))
					for i, l := range between {
						model.Add(fmt.Sprint("between", i), l())
					}
					model.Add("last", inPlace(does))
					defer nn.Free(model)
					nn.Materialise(c, nn.State(model), 3)
					x := c.Randn(5, 4)
					y := model.Forward(nn.NewCtx(c, nn.Config{Training: true}), x)
					if err := torch.Try(func() {
						c.Backward([]*torch.Tensor{c.Mean(y)}, []*torch.Tensor{nil}, false)
					}); err != nil {
						return err.Error()
					}
					return fmt.Sprint(torch.Values[float32](c.GradOf(nn.Params(model)[0].Tensor())))
				}
				if got, want := gradients(true), gradients(false); got != want {
					t.Errorf("%s, %s, %s in place: %.200s, want %s", name, pass, last, got, want)
				}
			}
		}
	}
}
