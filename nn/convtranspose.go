package nn

import (
	"cmp"

	"penstock.example/torch"
)

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
	// OutputPadding is so many pixels more on one side of the output; less than the stride or the
	// dilation. With a stride, images of several sizes give one size of a Conv2d; it says which.
	OutputPadding Pair
	Dilation      Pair // zero is 1x1: the kernel's elements touch
	// Groups splits input and output channels into so many groups that do not see each other; 0 is
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
	return c.ConvTranspose2d(x, l.Weight.Tensor(), l.Bias.Tensor(), l.stride[:], l.padding[:], l.outputPadding[:], l.groups, l.dilation[:])
}
