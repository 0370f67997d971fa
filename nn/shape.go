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

// UpsampleConfig configures an Upsample. Size or Scale must be given.
type UpsampleConfig struct {
	Size         Pair       // of the result
	Scale        [2]float64 // of height and width
	Bilinear     bool       // interpolate between the four nearest pixels; else take the nearest
	AlignCorners bool       // align the centres of corner pixels, not their edges; with Bilinear only
}

type bilinearUpsample struct {
	Base
	size  []int64   // nil when scale is given
	scale []float64 // nil when size is given
	align bool
}

// NewUpsample makes a layer that enlarges images: [N, C, H, W] to [N, C, H', W'].
func NewUpsample(o UpsampleConfig) Layer {
	l := &bilinearUpsample{align: o.AlignCorners}
	if o.Size != (Pair{}) {
		l.size = o.Size[:]
	} else {
		l.scale = o.Scale[:]
	}
	if !o.Bilinear {
		return newOperatorLayer("Upsample", "aten::upsample_nearest2d.vec", l.size, l.scale)
	}
	return l
}

// Forward is aten::upsample_bilinear2d, and on CUDA two products of matrices.
func (l *bilinearUpsample) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	bilinear := func(x *torch.Tensor, size []int64, scale []float64) *torch.Tensor {
		return c.Op("aten::upsample_bilinear2d.vec", x, size, l.align, scale)
	}
	if !needsOrder(c) || len(x.Shape()) != 4 {
		return bilinear(x, l.size, l.scale)
	}
	return resize(c, x, func(image *torch.Tensor, dim int) *torch.Tensor {
		if l.scale != nil {
			scale := []float64{1, 1}
			scale[dim] = l.scale[dim]
			return bilinear(image, nil, scale)
		}
		size := []int64{image.Size(2), image.Size(3)}
		size[dim] = l.size[dim]
		return bilinear(image, size, nil)
	})
}
