package nn

import (
	"penstock.example/torch"
)

// flatten makes one dimension of several neighbours. The result is a view where memory allows.
type flatten struct {
	Base
	start, end int64
}

// NewFlatten makes a Flatten of the dimensions from start to end, inclusive; negative ones count
// from the end. NewFlatten(1, -1) is PyTorch's default: [N, ...] to [N, features].
func NewFlatten(start, end int64) Layer { return &flatten{start: start, end: end} }

func (l *flatten) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	return c.Op("aten::flatten.using_ints", x, l.start, l.end)
}

// identity returns its input itself.
type identity struct{ Base }

func NewIdentity() Layer { return &identity{} }

// Forward returns x.
func (l *identity) Forward(_ *Ctx, x *torch.Tensor) *torch.Tensor { return x }

// Stash stashes its input as a skip connection and returns it.
type Stash struct {
	Base
	skip string
}

// NewStash makes a Stash under the skip's name.
func NewStash(skip string) *Stash {
	s := &Stash{skip: skip}
	s.Stashes(skip)
	return s
}

// Forward returns x.
func (s *Stash) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	c.Stash(s.skip, x)
	return x
}

// upsample enlarges images: [N, C, H, W] to [N, C, H', W'].
type upsample struct {
	Base
	size  []int64   // nil when scale is given
	scale []float64 // nil when size is given
	o     UpsampleConfig
}

// UpsampleConfig configures an Upsample. Size or Scale must be given.
type UpsampleConfig struct {
	Size         Pair       // of the result
	Scale        [2]float64 // of height and width
	Bilinear     bool       // interpolate between the four nearest pixels; else take the nearest
	AlignCorners bool       // corner pixels keep their values instead of their borders; with Bilinear only
}

func NewUpsample(o UpsampleConfig) Layer {
	l := &upsample{o: o}
	if o.Size != (Pair{}) {
		l.size = o.Size[:]
	} else {
		l.scale = o.Scale[:]
	}
	return l
}

// Forward is aten::upsample_nearest2d or aten::upsample_bilinear2d. On CUDA the latter is two products
// of matrices.
func (l *upsample) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	const bilinear = "aten::upsample_bilinear2d.vec"
	switch {
	case !l.o.Bilinear:
		return c.Op("aten::upsample_nearest2d.vec", x, l.size, l.scale)
	case unordered(c) && x.Dims() == 4:
		return resized(c, x, func(image *torch.Tensor, dim int) *torch.Tensor {
			if l.scale != nil {
				scale := []float64{1, 1}
				scale[dim] = l.scale[dim]
				return c.Op(bilinear, image, nil, l.o.AlignCorners, scale)
			}
			size := []int64{image.Size(2), image.Size(3)}
			size[dim] = l.size[dim]
			return c.Op(bilinear, image, size, l.o.AlignCorners, nil)
		})
	}
	return c.Op(bilinear, x, l.size, l.o.AlignCorners, l.scale)
}
