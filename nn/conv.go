package nn

import (
	"cmp"

	"penstock.example/torch"
)

// Conv2d is a cross-correlation over images: [N, in, H, W] to [N, out, H', W'], H' = (H + 2 padding
// - dilation (kernel - 1) - 1) / stride + 1, rounded down.
type Conv2d struct {
	Base
	Weight *Param // [out, in/groups, height, width]
	Bias   *Param // [out]; nil without

	stride, padding, dilation Pair
	groups                    int64
}

// Conv2dConfig configures a Conv2d. The zero value is stride 1, no padding, no dilation, one group,
// a bias.
type Conv2dConfig struct {
	Stride   Pair // zero is 1x1
	Padding  Pair // zeros on each side
	Dilation Pair // zero is 1x1: the kernel's elements touch
	// Groups splits input and output channels into so many groups that do not see each other; 0 is
	// 1
	Groups int64
	NoBias bool
}

// NewConv2d makes a Conv2d. Weight and bias start uniform within 1/sqrt(in/groups * height *
// width).
func NewConv2d(in, out int64, kernel Pair, o Conv2dConfig) *Conv2d {
	l := &Conv2d{stride: o.Stride.or(Square(1)), padding: o.Padding, dilation: o.Dilation.or(Square(1)), groups: cmp.Or(o.Groups, 1)}
	requireChannels("Conv2d", in, out, l.groups)
	kernel.require("Conv2d", "the kernel", 1)
	l.stride.require("Conv2d", "Stride", 1)
	l.padding.require("Conv2d", "Padding", 0)
	l.dilation.require("Conv2d", "Dilation", 1)

	init := FanIn(in / l.groups * kernel[0] * kernel[1])
	l.Weight = l.Param("weight", init, out, in/l.groups, kernel[0], kernel[1])
	if !o.NoBias {
		l.Bias = l.Param("bias", init, out)
	}
	return l
}

// Forward is penstock::conv2d, which gives what aten::conv2d gives.
func (l *Conv2d) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	conv := c.Conv2d
	if l.Weight.Shared() { // as in Linear
		conv = c.PlainConv2d
	}
	return conv(x, l.Weight.Tensor(), l.Bias.Tensor(), l.stride[:], l.padding[:], l.dilation[:], l.groups)
}

// requireChannels refuses channels that a convolution's groups do not divide.
func requireChannels(layer string, in, out, groups int64) {
	requirePositive(layer, "in", in)
	requirePositive(layer, "out", out)
	requirePositive(layer, "Groups", groups)
	require(in%groups == 0 && out%groups == 0,
		"%s: %d groups do not divide %d input and %d output channels; choose a divisor of both", layer, groups, in, out)
}
