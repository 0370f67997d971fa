package pipe_test

import (
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// wrappedNet is six flattened layers of every kind, three of them wrapped: with dropout and batch
// norm, one wrapper in another, and skips into one and out of one.
func wrappedNet(wrap func(nn.Layer) nn.Layer) *nn.Sequential {
	stash, pop := layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { c.Stash("far", x); return x }),
		layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Add(x, c.Pop("far")) })
	stash.Stashes("far")
	pop.Pops("far")
	return nn.NewSequential().
		Add("stem", wrap(nn.NewConv2d(2, 4, nn.Square(3), nn.Conv2dConfig{Padding: nn.Square(1)}))).
		Add("one", grouped{wrap(nn.NewSequential(nn.NewBatchNorm2d(4, nn.BatchNormConfig{}), nn.NewReLUInPlace(), stash, nn.NewDropout(0.3)))}).
		Add("two", grouped{wrap(nn.NewSequential(nn.NewReLUInPlace(), grouped{wrap(nn.NewBasicBlock(4, 4, 1))}, pop))}).
		Add("pool", nn.NewAdaptiveAvgPool2d(nn.Square(1))).
		Add("flat", nn.NewFlatten(1, -1)).
		Add("head", nn.NewLinear(4, 3))
}

// grouped is a layer that a pipe does not flatten, so that a model has the same layers with wrappers
// and without.
type grouped struct{ nn.Layer }

func (l grouped) OverwritesInput() bool {
	f, ok := l.Layer.(nn.InPlace)
	return ok && f.OverwritesInput()
}

func wrappedProblem(wrap func(nn.Layer) nn.Layer) problem {
	return problem{
		model: func() *nn.Sequential { return wrappedNet(wrap) }, rows: 7, steps: 2,
		loss: nn.CrossEntropy(), input: normal(7, 2, 6, 6), target: classes(7, 3),
	}
}

// A pipeline of layers that recompute by themselves is the plain model without wrappers, for every
// policy: a stage that recomputes recomputes those too.
func TestCheckpointedLayersInAPipe(t *testing.T) {
	torchtest.Check(t)
	for _, deferred := range []bool{false, true} {
		plain, wrapped := wrappedProblem(unwrapped), wrappedProblem(nn.Checkpointed)
		plain.deferred = deferred
		want := plain.plain(3, 5)
		for _, balance := range [][]int{{6}, {2, 4}, {1, 1, 4}, {1, 2, 2, 1}} {
			for _, policy := range policies {
				got := wrapped.piped(t, pipe.Config{Balance: balance, Chunks: 3, Checkpoint: policy, Seed: 5,
					DeferredBatchNorm: deferred})
				if d := want.differs(got); d != "" {
					t.Errorf("balance %v, %v, deferred %v: %s differs from the plain loop without wrappers",
						balance, policy, deferred, d)
				}
			}
		}
	}
}

// buried is a model in whose second stage, in a wrapper in a wrapper, is the saboteur.
func buried(s *saboteur) *nn.Sequential {
	deep := nn.Checkpointed(nn.NewSequential(nn.NewTanh()).Add("it", s))
	return nn.NewSequential(nn.NewLinear(4, 8), nn.NewTanh()).Add("wrapped",
		nn.Checkpointed(nn.NewSequential(nn.NewLinear(8, 8)).Add("deep", deep))).Add("head", nn.NewLinear(8, 3))
}
