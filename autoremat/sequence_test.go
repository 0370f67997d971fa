package autoremat_test

import (
	"math/rand/v2"
	"testing"

	"penstock.example/autoremat"
	"penstock.example/internal/torchtest"
	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/remat"
	"penstock.example/torch"
)

// TestPeaksOfPlansThatFollowOthers: when plans are set one after the other, each step's peak is as
// predicted, to the byte. Backward of a unit takes other bytes where the unit is recomputed after
// the loss. It was once measured under the first plan only.
func TestPeaksOfPlansThatFollowOthers(t *testing.T) {
	gpt := problem{name: "gpt, wide", model: func() *nn.Sequential {
		m, err := models.New("gpt", models.Options{Width: 64, Heads: 2, Context: 16, Depth: 2})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}, input: []int64{4, 16}, tokens: 10, target: func(c *torch.Ctx, step int) *torch.Tensor {
		return c.Reshape(classes(64, 10)(c, step), 4, 16)
	}, loss: nn.CrossEntropy()}
	for _, q := range append(zoo(t), gpt) {
		if q.name == "resnet18" {
			continue // as resnet20, and slower
		}
		for _, known := range []bool{false, true} {
			t.Run(q.name, func(t *testing.T) {
				torchtest.Check(t)
				random := rand.New(rand.NewPCG(16, 1))
				config := autoremat.Config{Limit: 1 << 40}
				if known {
					config.Loss = q.loss
				}
				var ops []remat.Op
				steps := 0
				q.batches = 2
				q.each = func(step, batch int, w wrapped) {
					steps++
					if got, want := device.Memory().Peak, w.m.Predicted(); got != want {
						t.Errorf("step %d, batch %d: the peak is %d, predicted were %d (%+d); the plan is %s", step, batch, got, want, want-got, remat.FormatOps(ops))
					}
					device.ResetPeak()
				}
				q.run(t, 20, q.planned(t, config, remat.None), func(step int, w wrapped) {
					if step > 0 {
						chain, err := w.m.Chain()
						if err != nil {
							t.Fatal(err)
						}
						ops = randomOps(random, len(chain.Layers))
						if err := w.m.SetPlan(remat.Plan{Ops: ops}); err != nil {
							t.Fatal(err)
						}
					}
					device.ResetPeak()
				}, nil)
			})
		}
	}
}
