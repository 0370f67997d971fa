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
	// Groups is the number of groups of input and output channels that do not see each other; 0 is
	// 1
	Groups int64
	NoBias bool
}

// NewConv2d makes a Conv2d. Weight and bias start uniform within 1/sqrt(in/groups * height *
// width).
func NewConv2d(in, out int64, kernel Pair, o Conv2dConfig) *Conv2d {
	l := &Conv2d{stride: o.Stride.or(Square(1)), padding: o.Padding, dilation: o.Dilation.or(Square(1)),
		groups: cmp.Or(o.Groups, 1)}
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
		"%s: %d groups do not divide %d input and %d output channels; choose a divisor of both", layer,
		groups, in, out)
}

// Conv1d is a cross-correlation over sequences: [N, in, L] to [N, out, L'], L' = (L + 2 padding -
// dilation (kernel - 1) - 1) / stride + 1, rounded down.
type Conv1d struct {
	Base
	Weight *Param // [out, in/groups, kernel]
	Bias   *Param // [out]; nil without

	stride, padding, dilation, groups int64
}

// Conv1dConfig configures a Conv1d. The zero value is stride 1, no padding, no dilation, one group,
// a bias.
type Conv1dConfig struct {
	Stride   int64 // 0 is 1
	Padding  int64 // zeros on each side
	Dilation int64 // 0 is 1: the kernel's elements touch
	// Groups is the number of groups of input and output channels that do not see each other; 0 is
	// 1
	Groups int64
	NoBias bool
}

// NewConv1d makes a Conv1d. Weight and bias start uniform within 1/sqrt(in/groups * kernel).
func NewConv1d(in, out, kernel int64, o Conv1dConfig) *Conv1d {
	l := &Conv1d{stride: cmp.Or(o.Stride, 1), padding: o.Padding, dilation: cmp.Or(o.Dilation, 1),
		groups: cmp.Or(o.Groups, 1)}
	requireChannels("Conv1d", in, out, l.groups)
	requirePositive("Conv1d", "the kernel", kernel)
	requirePositive("Conv1d", "Stride", l.stride)
	require(l.padding >= 0, "Conv1d: Padding is %d; it must be at least 0", l.padding)
	requirePositive("Conv1d", "Dilation", l.dilation)

	init := FanIn(in / l.groups * kernel)
	l.Weight = l.Param("weight", init, out, in/l.groups, kernel)
	if !o.NoBias {
		l.Bias = l.Param("bias", init, out)
	}
	return l
}

// Forward is aten::conv1d.
func (l *Conv1d) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	return c.Conv1d(x, l.Weight.Tensor(), l.Bias.Tensor(), l.stride, l.padding, l.dilation, l.groups)
}

// ConvTranspose2d is the transpose of Conv2d, which makes images larger: [N, in, H, W] to [N, out,
// H', W'], H' = (H - 1) stride - 2 padding + dilation (kernel - 1) + output padding + 1 (Zeiler et
// al. 2010, "Deconvolutional Networks").
type ConvTranspose2d struct {
	Base
	Weight *Param // [in, out/groups, height, width]
	Bias   *Param // [out]; nil without

	stride, padding, outputPadding, dilation Pair
	groups                                   int64
}

// ConvTranspose2dConfig configures a ConvTranspose2d. The zero value is stride 1, no padding, no
// dilation, one group, a bias.
type ConvTranspose2dConfig struct {
	Stride  Pair // zero is 1x1
	Padding Pair // so many pixels less on each side of the output
	// OutputPadding is the number of pixels added on one side of the output; less than the stride or the
	// dilation. With a stride, images of several sizes give one size of a Conv2d; it says which.
	OutputPadding Pair
	Dilation      Pair // zero is 1x1: the kernel's elements touch
	// Groups is the number of groups of input and output channels that do not see each other; 0 is
	// 1
	Groups int64
	NoBias bool
}

// NewConvTranspose2d makes a ConvTranspose2d. Weight and bias start uniform within 1/sqrt(out/groups
// * height * width), as PyTorch's do.
func NewConvTranspose2d(in, out int64, kernel Pair, o ConvTranspose2dConfig) *ConvTranspose2d {
	l := &ConvTranspose2d{stride: o.Stride.or(Square(1)), padding: o.Padding, outputPadding: o.OutputPadding,
		dilation: o.Dilation.or(Square(1)), groups: cmp.Or(o.Groups, 1)}
	requireChannels("ConvTranspose2d", in, out, l.groups)
	kernel.require("ConvTranspose2d", "the kernel", 1)
	l.stride.require("ConvTranspose2d", "Stride", 1)
	l.padding.require("ConvTranspose2d", "Padding", 0)
	l.outputPadding.require("ConvTranspose2d", "OutputPadding", 0)
	l.dilation.require("ConvTranspose2d", "Dilation", 1)
	for i, p := range l.outputPadding {
		most := max(l.stride[i], l.dilation[i]) - 1
		require(p <= most, "ConvTranspose2d: OutputPadding is %dx%d; it must be less than the stride %dx%d or the dilation %dx%d",
			l.outputPadding[0], l.outputPadding[1], l.stride[0], l.stride[1], l.dilation[0], l.dilation[1])
	}

	init := FanIn(out / l.groups * kernel[0] * kernel[1])
	l.Weight = l.Param("weight", init, in, out/l.groups, kernel[0], kernel[1])
	if !o.NoBias {
		l.Bias = l.Param("bias", init, out)
	}
	return l
}

// Forward is aten::conv_transpose2d.
func (l *ConvTranspose2d) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	return c.ConvTranspose2d(x, l.Weight.Tensor(), l.Bias.Tensor(), l.stride[:], l.padding[:],
		l.outputPadding[:], l.groups, l.dilation[:])
}
