package nn

import (
	"cmp"

	"penstock.example/torch"
)

// Pair is a size in two dimensions: height, then width.
type Pair [2]int64

func Square(n int64) Pair { return Pair{n, n} }

// PoolConfig configures a pool of windows. The zero value has windows that touch, without padding.
type PoolConfig struct {
	Stride   Pair // zero is the kernel's size
	Padding  Pair // on each side, of minus infinity or of zeros; at most half the kernel
	Dilation Pair // of a MaxPool2d; zero is 1x1
	CeilMode bool // round H' and W' up: windows may reach over the edge
	// ExcludePadding makes an AvgPool2d divide by the number of pixels in the window without
	// padding (PyTorch's count_include_pad=False).
	ExcludePadding bool
}

// NewMaxPool2d makes the maximum of each window of an image: [N, C, H, W] to [N, C, H', W']. H' is
// computed as in NewConv2d.
func NewMaxPool2d(kernel Pair, o PoolConfig) Layer {
	stride, dilation := cmp.Or(o.Stride, kernel), cmp.Or(o.Dilation, Square(1))
	return newOperatorLayer("MaxPool2d", "aten::max_pool2d", kernel[:], stride[:], o.Padding[:], dilation[:],
		o.CeilMode)
}

// NewAvgPool2d is NewMaxPool2d with the mean of each window.
func NewAvgPool2d(kernel Pair, o PoolConfig) Layer {
	stride := cmp.Or(o.Stride, kernel)
	return newOperatorLayer("AvgPool2d", "aten::avg_pool2d", kernel[:], stride[:], o.Padding[:], o.CeilMode,
		!o.ExcludePadding)
}

type adaptiveAvgPool2d struct {
	Base
	size Pair
}

// NewAdaptiveAvgPool2d makes a layer that averages images of any size to one size: [N, C, *, *] to
// [N, C, size].
func NewAdaptiveAvgPool2d(size Pair) Layer { return &adaptiveAvgPool2d{size: size} }

// Forward is aten::adaptive_avg_pool2d, and on CUDA two products of matrices unless the size is
// 1x1.
func (l *adaptiveAvgPool2d) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	pool := func(x *torch.Tensor, size []int64) *torch.Tensor {
		return c.Op("aten::adaptive_avg_pool2d", x, size)
	}
	if needsOrder(c) && l.size != Square(1) && len(x.Shape()) == 4 {
		return resize(c, x, func(image *torch.Tensor, dim int) *torch.Tensor {
			size := []int64{image.Size(2), image.Size(3)}
			size[dim] = l.size[dim]
			return pool(image, size)
		})
	}
	return pool(x, l.size[:])
}
