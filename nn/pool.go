package nn

import "penstock.example/torch"

// maxPool2d takes the maximum of each window of an image: [N, C, H, W] to [N, C, H', W'], H' as for
// Conv2d.
type maxPool2d struct {
	Base
	kernel, stride, padding, dilation Pair
	ceil                              bool
}

// MaxPool2dConfig configures a MaxPool2d. The zero value is windows that touch, without padding.
type MaxPool2dConfig struct {
	Stride   Pair // zero is the kernel's size
	Padding  Pair // of minus infinity on each side; at most half the kernel
	Dilation Pair // zero is 1x1
	CeilMode bool // round H' and W' up: windows may reach over the edge
}

func NewMaxPool2d(kernel Pair, o MaxPool2dConfig) Layer {
	l := &maxPool2d{kernel: kernel, stride: o.Stride.or(kernel), padding: o.Padding,
		dilation: o.Dilation.or(Square(1)), ceil: o.CeilMode}
	return l
}

func (l *maxPool2d) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	return c.Op("aten::max_pool2d", x, l.kernel[:], l.stride[:], l.padding[:], l.dilation[:], l.ceil)
}

// avgPool2d takes the mean of each window of an image: [N, C, H, W] to [N, C, H', W'], H' as for
// Conv2d.
type avgPool2d struct {
	Base
	kernel, stride, padding Pair
	ceil, countPadding      bool
}

// AvgPool2dConfig configures an AvgPool2d. The zero value is windows that touch, without padding.
type AvgPool2dConfig struct {
	Stride   Pair // zero is the kernel's size
	Padding  Pair // of zeros on each side; at most half the kernel
	CeilMode bool // round H' and W' up: windows may reach over the edge
	// ExcludePadding divides by the number of pixels in the window, without its padding (PyTorch's
	// count_include_pad=False)
	ExcludePadding bool
}

func NewAvgPool2d(kernel Pair, o AvgPool2dConfig) Layer {
	l := &avgPool2d{kernel: kernel, stride: o.Stride.or(kernel), padding: o.Padding, ceil: o.CeilMode,
		countPadding: !o.ExcludePadding}
	return l
}

func (l *avgPool2d) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	return c.Op("aten::avg_pool2d", x, l.kernel[:], l.stride[:], l.padding[:], l.ceil, l.countPadding)
}

// adaptiveAvgPool2d averages an image of any size down, or up, to a fixed one: [N, C, *, *] to [N,
// C, size].
type adaptiveAvgPool2d struct {
	Base
	size Pair
}

func NewAdaptiveAvgPool2d(size Pair) Layer {
	return &adaptiveAvgPool2d{size: size}
}

// Forward is aten::adaptive_avg_pool2d, and on CUDA two products of matrices unless the size is 1x1.
func (l *adaptiveAvgPool2d) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	if unordered(c) && l.size != Square(1) && x.Dims() == 4 {
		return resized(c, x, func(image *torch.Tensor, dim int) *torch.Tensor {
			size := []int64{image.Size(2), image.Size(3)}
			size[dim] = l.size[dim]
			return c.Op("aten::adaptive_avg_pool2d", image, size)
		})
	}
	return c.Op("aten::adaptive_avg_pool2d", x, l.size[:])
}
