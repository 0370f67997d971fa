package nn

import (
	"penstock.example/torch"
)

type identity struct{ Base }

// NewIdentity makes a layer that returns its input itself.
func NewIdentity() Layer { return &identity{} }

func (l *identity) Forward(_ *Ctx, x *torch.Tensor) *torch.Tensor { return x }

type stash struct {
	Base
	skip string
}

// NewStash makes a layer that stashes its input as a skip connection, and returns it.
func NewStash(skip string) Layer {
	s := &stash{skip: skip}
	s.Stashes(skip)
	return s
}

func (s *stash) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	c.Stash(s.skip, x)
	return x
}

// NewUpsample makes a layer that enlarges images by a factor: [N, C, H, W] to [N, C, H', W']. Each
// pixel is that of the nearest one.
func NewUpsample(factor float64) Layer {
	return newOperation("Upsample", "aten::upsample_nearest2d.vec", []int64(nil), []float64{factor, factor})
}
