package nn_test

import (
	"slices"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/torch"
)

// A fork made in a layer, and run later, draws what the layer would have drawn, under the same
// names, and says where it fails.
func TestForkIsAtTheSamePlace(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	drop := nn.NewDropout(0.5)
	var later func() []float32
	var n *nn.Ctx
	var path string
	inner := doing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		fork := c.Fork(c.Ctx, nn.Fork{})
		x = c.Keep(c.Share(x))
		again := c.Fork(c.Ctx, nn.Fork{Recomputing: true, Spans: true})
		later = func() []float32 {
			defer x.Free()
			ys := again.RunNamed(nn.NamedLayer{Name: "drop", Layer: drop}, []*torch.Tensor{x})
			path = again.Spans()[0].Layer
			if !again.Recomputing || !again.Training || n.Recomputing {
				t.Errorf("flags are %v, %v, and %v outside", again.Recomputing, again.Training, n.Recomputing)
			}
			again.FailedAt("outer.inner.drop")
			n.FailedAt("outer.inner.drop.deep")
			return torch.Values[float32](ys[0])
		}
		return fork.RunNamed(nn.NamedLayer{Name: "drop", Layer: drop}, []*torch.Tensor{x})[0]
	})
	inner.Child("drop", drop)
	model := nn.NewSequential().Add("outer", nn.NewSequential().Add("inner", inner))
	n = nn.NewCtx(c, nn.Config{Training: true, Seed: 7})
	first := torch.Values[float32](model.Forward(n, c.Ones(torch.Float32, 64)))
	if second := later(); !slices.Equal(first, second) {
		t.Error("the fork draws other numbers")
	}
	if path != "outer.inner.drop" || n.Path() != "outer.inner.drop.deep" {
		t.Errorf("the fork ran %q, and the path is %q", path, n.Path())
	}
}

func TestSharedBeyond(t *testing.T) {
	first, second := nn.NewLinearNoBias(3, 3), nn.NewLinearNoBias(3, 3)
	tie := func(p *nn.Param) nn.Layer {
		l := doing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return x })
		l.Share("weight", p)
		return l
	}
	inside, outside := tie(first.Weight), tie(second.Weight)
	m := nn.NewSequential(first, second, inside)
	if got := nn.SharedBeyond(m); !slices.Equal(got, []*nn.Param{second.Weight}) {
		t.Errorf("got %v, want the second weight", got)
	}
	if got := nn.SharedBeyond(nn.NewSequential(outside)); !slices.Equal(got, []*nn.Param{second.Weight}) {
		t.Errorf("of the module that shares: got %v, want the second weight", got)
	}
	if got := nn.SharedBeyond(nn.NewSequential(nn.NewLinear(2, 2), m, tie(first.Weight))); len(got) != 1 || got[0] != second.Weight {
		t.Errorf("got %v, want the second weight", got)
	}
}
