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
	Stride   Pair  // zero is 1x1
	Padding  Pair  // zeros on each side
	Dilation Pair  // zero is 1x1: the kernel's elements touch
	Groups   int64 // of input and output channels that do not see each other; 0 is 1
	NoBias   bool
}

// NewConv2d makes a Conv2d. Weight and bias start uniform within 1/sqrt(in/groups * height *
// width).
func NewConv2d(in, out int64, kernel Pair, o Conv2dConfig) *Conv2d {
	l := &Conv2d{stride: o.Stride.or(Square(1)), padding: o.Padding, dilation: o.Dilation.or(Square(1)),
		groups: cmp.Or(o.Groups, 1)}
	l.Weight, l.Bias = l.weightAndBias(FanIn(in/l.groups*kernel[0]*kernel[1]), o.NoBias, out, out,
		in/l.groups, kernel[0], kernel[1])
	return l
}

// weightAndBias declares a weight of a shape and a bias of out elements, unless there is none.
func (b *Base) weightAndBias(init Init, noBias bool, out int64, shape ...int64) (weight, bias *Param) {
	weight = b.Param("weight", init, shape...)
	if !noBias {
		bias = b.Param("bias", init, out)
	}
	return weight, bias
}

// Forward is penstock::conv2d, which gives what aten::conv2d gives.
func (l *Conv2d) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	conv := "penstock::conv2d" // of few positions a product, whose backward adds to the gradient in place
	if l.Weight.Shared() {     // as in Linear
		conv = "aten::conv2d"
	}
	return c.Op(conv, x, l.Weight.Tensor(), l.Bias.Tensor(), l.stride[:], l.padding[:], l.dilation[:],
		l.groups)
}

// conv1d is a cross-correlation over sequences: [N, in, L] to [N, out, L'], L' = (L + 2 padding -
// dilation (kernel - 1) - 1) / stride + 1, rounded down.
type conv1d struct {
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
	Groups   int64 // of input and output channels that do not see each other; 0 is 1
	NoBias   bool
}

// NewConv1d makes a Conv1d. Weight and bias start uniform within 1/sqrt(in/groups * kernel).
func NewConv1d(in, out, kernel int64, o Conv1dConfig) Layer {
	l := &conv1d{stride: cmp.Or(o.Stride, 1), padding: o.Padding, dilation: cmp.Or(o.Dilation, 1),
		groups: cmp.Or(o.Groups, 1)}
	l.Weight, l.Bias = l.weightAndBias(FanIn(in/l.groups*kernel), o.NoBias, out, out, in/l.groups, kernel)
	return l
}

func (l *conv1d) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	return c.Op("aten::conv1d", x, l.Weight.Tensor(), l.Bias.Tensor(), l.stride, l.padding, l.dilation,
		l.groups)
}

// convTranspose2d is the transpose of Conv2d, which makes images larger: [N, in, H, W] to [N, out,
// H', W'], H' = (H - 1) stride - 2 padding + dilation (kernel - 1) + output padding + 1 (Zeiler et
// al. 2010, "Deconvolutional Networks").
type convTranspose2d struct {
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
	Dilation      Pair  // zero is 1x1: the kernel's elements touch
	Groups        int64 // of input and output channels that do not see each other; 0 is 1
	NoBias        bool
}

// NewConvTranspose2d makes a ConvTranspose2d. Weight and bias start uniform within 1/sqrt(out/groups
// * height * width), as PyTorch's do.
func NewConvTranspose2d(in, out int64, kernel Pair, o ConvTranspose2dConfig) Layer {
	l := &convTranspose2d{stride: o.Stride.or(Square(1)), padding: o.Padding, outputPadding: o.OutputPadding,
		dilation: o.Dilation.or(Square(1)), groups: cmp.Or(o.Groups, 1)}
	l.Weight, l.Bias = l.weightAndBias(FanIn(out/l.groups*kernel[0]*kernel[1]), o.NoBias, out, in,
		out/l.groups, kernel[0], kernel[1])
	return l
}

func (l *convTranspose2d) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	return c.Op("aten::conv_transpose2d.input", x, l.Weight.Tensor(), l.Bias.Tensor(), l.stride[:],
		l.padding[:], l.outputPadding[:], l.groups, l.dilation[:])
}
