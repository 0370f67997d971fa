package nn

import "penstock.example/torch"

// Upsample enlarges images: [N, C, H, W] to [N, C, H', W'].
type Upsample struct {
	Base
	size  []int64   // nil when scale is given
	scale []float64 // nil when size is given
	o     UpsampleConfig
}

// UpsampleConfig configures an Upsample. Size or Scale must be given, and not both.
type UpsampleConfig struct {
	Size         Pair       // of the result
	Scale        [2]float64 // of height and width
	Bilinear     bool       // interpolate between the four nearest pixels; else take the nearest
	AlignCorners bool       // corner pixels keep their values instead of their borders; with Bilinear only
}

// NewUpsample makes an Upsample.
func NewUpsample(o UpsampleConfig) *Upsample {
	hasSize, hasScale := o.Size != Pair{}, o.Scale != [2]float64{}
	require(hasSize != hasScale, "Upsample: Size is %v and Scale is %v; give one of them", o.Size, o.Scale)
	require(o.Bilinear || !o.AlignCorners, "Upsample: AlignCorners is for Bilinear only")
	l := &Upsample{o: o}
	if hasSize {
		o.Size.require("Upsample", "Size", 1)
		l.size = o.Size[:]
		return l
	}
	require(o.Scale[0] > 0 && o.Scale[1] > 0, "Upsample: Scale is %v; both factors must be positive", o.Scale)
	l.scale = o.Scale[:]
	return l
}

// Forward is aten::upsample_nearest2d or aten::upsample_bilinear2d. On CUDA the latter is two products
// of matrices.
func (l *Upsample) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	switch {
	case !l.o.Bilinear:
		return c.UpsampleNearest2d(x, l.size, l.scale)
	case unordered(c) && x.Dims() == 4:
		return resized(c, x, func(image *torch.Tensor, dim int) *torch.Tensor {
			if l.scale != nil {
				scale := []float64{1, 1}
				scale[dim] = l.scale[dim]
				return c.UpsampleBilinear2d(image, nil, scale, l.o.AlignCorners)
			}
			size := []int64{image.Size(2), image.Size(3)}
			size[dim] = l.size[dim]
			return c.UpsampleBilinear2d(image, size, nil, l.o.AlignCorners)
		})
	}
	return c.UpsampleBilinear2d(x, l.size, l.scale, l.o.AlignCorners)
}
