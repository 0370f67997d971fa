package nn

import (
	"cmp"

	"penstock.example/torch"
)

type conv struct {
	Base
	Weight *Param
	Bias   *Param // [out]; nil without
	args   []any  // after input, weight and bias
}

// ConvConfig configures a convolution over images. The zero value has a bias.
type ConvConfig struct {
	Stride   Pair  // zero is 1x1
	Padding  Pair  // zeros added on each side
	Dilation Pair  // zero is 1x1
	Groups   int64 // of channels; each output group reads one input group; 0 is 1
	NoBias   bool
}

// NewConv2d makes a cross-correlation over images: [N, in, H, W] to [N, out, H', W'], H' = (H + 2
// padding - dilation (kernel - 1) - 1) / stride + 1, rounded down. Its weight is [out, in/groups,
// height, width]. Weight and bias start uniform within 1/sqrt(in/groups * height * width).
func NewConv2d(in, out int64, kernel Pair, o ConvConfig) Layer {
	stride, dilation, groups := cmp.Or(o.Stride, Square(1)), cmp.Or(o.Dilation, Square(1)), cmp.Or(o.Groups, 1)
	l := &conv{args: []any{stride[:], o.Padding[:], dilation[:], groups}}
	l.Weight, l.Bias = l.weightAndBias(o.NoBias, out, out, in/groups, kernel[0], kernel[1])
	return l
}

// weightAndBias declares a weight of a shape and, unless noBias is set, a bias of out elements. The
// product of all sizes but the first is their fan-in.
func (b *Base) weightAndBias(noBias bool, out int64, shape ...int64) (weight, bias *Param) {
	fanIn := int64(1)
	for _, n := range shape[1:] {
		fanIn *= n
	}
	weight = b.Param("weight", FanIn(fanIn), shape...)
	if !noBias {
		bias = b.Param("bias", FanIn(fanIn), out)
	}
	return weight, bias
}

// Forward computes the bits of aten::conv2d. For few output positions penstock::conv2d multiplies
// matrices, and its backward adds to the gradient of the weight in place.
func (l *conv) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	operator := "penstock::conv2d"
	if l.Weight.Shared() { // as in Linear
		operator = "aten::conv2d"
	}
	return c.Op(operator, append([]any{x, l.Weight.Tensor(), l.Bias.Tensor()}, l.args...)...)
}
