package pipe_test

import (
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// Several stages may receive one skip at the same time, and may find that it is absent while the
// stage that it would come from is already recomputing. Both were once data races, which the race
// detector finds here: counts of takers were lost, and a skip then stayed until the end of the
// step.
func TestSkipIsTakenOverByManyAtOnce(t *testing.T) {
	torchtest.Check(t)
	model := func(present bool) *nn.Sequential {
		out := func() nn.Layer {
			return popping(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				skip := c.Pop("skip")
				if (skip != nil) != present {
					panic("a skip that should not be there, or none that should")
				}
				if present {
					return c.Add(c.Tanh(x), skip)
				}
				return c.Tanh(x)
			}, "skip")
		}
		in := stashing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			if present {
				c.Stash("skip", x)
			} else {
				c.Stash("skip", nil)
			}
			return x
		}, "skip")
		return nn.NewSequential(nn.NewLinear(4, 4), in, out(), out(), out())
	}
	for _, present := range []bool{true, false} {
		q := trial{model: func() *nn.Sequential { return model(present) }, inputs: one(normal(8, 4)),
			targets: one(normal(8, 4)), loss: squares{}, rows: 8, steps: 3}
		want := q.plain(8, 5)
		cfg := pipe.Config{Balance: []int{2, 1, 1, 1}, Chunks: 8, Checkpoint: pipe.Always, Seed: 5}
		if d := want.differs(q.piped(t, cfg)); d != "" {
			t.Errorf("present %v: %s differs from the plain loop", present, d)
		}
	}
}
