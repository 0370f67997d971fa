package profile_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/profile"
	"penstock.example/torch"
)

// TestParametersElsewhereAreMeasured: a model whose parameters are on another device gets the
// chains that it has where they are here, to the byte. Afterwards it is as it was, also after a
// layer that fails.
func TestParametersElsewhereAreMeasured(t *testing.T) {
	// tied weights, buffers, a weight that a layer uses twice
	for _, name := range []string{"gpt", "resnet20", "mlp", "shared"} {
		t.Run(name, func(t *testing.T) {
			c := newCtx(t)
			o := models.Options{Channels: 2, Size: 6, Width: 16}
			sample, loss := images(c), nn.CrossEntropy()
			if name == "gpt" {
				o, sample = models.Options{Width: 16, Heads: 2, Context: 5, Depth: 2, Classes: 11}, tokens(c)
			}
			var model *nn.Sequential
			if name == "shared" {
				model, sample = nn.NewSequential(newTwice(), nn.NewLinear(16, 5)), vectors(c)
			} else {
				var err error
				if model, err = models.New(name, o); err != nil {
					t.Fatal(err)
				}
			}
			nn.Materialise(c, nn.State(model), 1)
			defer nn.Free(model)
			c.SetGrad(true)
			c.Backward([]*torch.Tensor{c.Sum(nn.NewCtx(c, nn.Config{Training: true}).Run(sample, model))},
				[]*torch.Tensor{nil}, false)
			c.SetGrad(false)
			target := torch.From(c, make([]int64, 6), 6)
			if name == "gpt" {
				target = torch.From(c, make([]int64, 30), 6, 5)
			}
			layers := len(model.Layers())
			config := profile.Config{BytesOnly: true, Balance: []int{layers / 2, layers - layers/2},
				Loss: loss, Target: []*torch.Tensor{target}, LossUnit: true, Split: true}
			here := measured(t, model, config, sample)
			was, homes := state(model), map[*torch.Tensor]bool{}
			for _, s := range nn.State(model) {
				homes[s.Tensor()] = true
			}
			used := 0
			defer profile.SetAway(func(x *torch.Tensor, d torch.Device) bool {
				if homes[x] {
					used++
				}
				return homes[x]
			})()
			there := measured(t, model, config, sample)
			if used == 0 {
				t.Error("nobody asks where parameters are")
			}
			for i := range here.Chains {
				if d := cmp.Diff(here.Chains[i], there.Chains[i]); d != "" {
					t.Errorf("stage %d (-here +elsewhere):\n%s", i, d)
				}
			}
			config.BytesOnly, config.Repeats = false, 1
			measured(t, model, config, sample)
			compare(t, "measuring", was, state(model))
			broken := nn.NewSequential(model,
				one(func(*nn.Ctx, *torch.Tensor) *torch.Tensor { panic(errors.New("broken")) }))
			if _, err := profile.Measure(context.Background(), broken, profile.Config{}, sample); err == nil {
				t.Error("a broken layer is measured")
			}
			compare(t, "a failure", was, state(model))
			for _, s := range nn.State(model) {
				if s.Replica() != nil {
					t.Errorf("%s has a replica left", s.Name)
				}
			}
		})
	}
}

// twice is a layer that uses a weight twice.
type twice struct {
	nn.Base
	first, second *nn.Linear
}

func newTwice() *twice {
	l := &twice{first: nn.NewLinear(16, 16)}
	l.second = nn.NewLinearShared(l.first.Weight, false)
	l.Child("first", l.first)
	l.Child("second", l.second)
	return l
}

func (l *twice) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	return c.Run(c.Run(x, l.first), l.second)
}
