package nn

import (
	"cmp"

	"penstock.example/torch"
)

type conv struct {
	Base
	Weight *Param
	Bias   *Param // [out]; nil without

	kind, operator string // "Conv2d", "aten::conv2d"
	args           []any  // after input, weight and bias
}

// ConvConfig configures a convolution over images. The zero value has a bias.
type ConvConfig struct {
	Stride   Pair  // zero is 1x1
	Padding  Pair  // zeros added on each side; a ConvTranspose2d removes pixels instead
	Dilation Pair  // zero is 1x1
	Groups   int64 // of channels; each output group reads one input group; 0 is 1
	NoBias   bool
	// OutputPadding adds pixels at the bottom and on the right of a ConvTranspose2d's output, fewer
	// than the stride or the dilation. A Conv2d with a stride turns images of several sizes into
	// one size; OutputPadding chooses the size to go back to.
	OutputPadding Pair
}

// NewConv2d makes a cross-correlation over images: [N, in, H, W] to [N, out, H', W'], H' = (H + 2
// padding - dilation (kernel - 1) - 1) / stride + 1, rounded down. Its weight is [out, in/groups,
// height, width]. Weight and bias start uniform within 1/sqrt(in/groups * height * width).
func NewConv2d(in, out int64, kernel Pair, o ConvConfig) Layer {
	stride, dilation, groups := o.defaults()
	l := &conv{kind: "Conv2d", operator: ownConv2d, args: []any{stride[:], o.Padding[:], dilation[:], groups}}
	l.Weight, l.Bias = l.weightAndBias(o.NoBias, out, out, in/groups, kernel[0], kernel[1])
	return l
}

// ownConv2d computes the same bits as aten::conv2d. For few output positions it multiplies
// matrices. Its backward adds to the gradient of the weight in place.
const ownConv2d = "penstock::conv2d"

func (o ConvConfig) defaults() (stride, dilation Pair, groups int64) {
	return cmp.Or(o.Stride, Square(1)), cmp.Or(o.Dilation, Square(1)), cmp.Or(o.Groups, 1)
}

// NewConvTranspose2d makes the transpose of Conv2d, which makes images larger: [N, in, H, W] to [N,
// out, H', W'], H' = (H - 1) stride - 2 padding + dilation (kernel - 1) + output padding + 1
// (Zeiler et al. 2010, "Deconvolutional Networks"). Its weight is [in, out/groups, height, width].
// Weight and bias start uniform within 1/sqrt(out/groups * height * width), as PyTorch's do.
func NewConvTranspose2d(in, out int64, kernel Pair, o ConvConfig) Layer {
	stride, dilation, groups := o.defaults()
	l := &conv{kind: "ConvTranspose2d", operator: "aten::conv_transpose2d.input",
		args: []any{stride[:], o.Padding[:], o.OutputPadding[:], groups, dilation[:]}}
	l.Weight, l.Bias = l.weightAndBias(o.NoBias, out, in, out/groups, kernel[0], kernel[1])
	return l
}

// Conv1dConfig has the fields of ConvConfig in one dimension.
type Conv1dConfig struct {
	Stride, Padding, Dilation, Groups int64
	NoBias                            bool
}

// NewConv1d makes a cross-correlation over sequences: [N, in, L] to [N, out, L']. L' is computed as
// H' in NewConv2d. The weight is [out, in/groups, kernel].
func NewConv1d(in, out, kernel int64, o Conv1dConfig) Layer {
	groups := cmp.Or(o.Groups, 1)
	l := &conv{kind: "Conv1d", operator: "aten::conv1d",
		args: []any{cmp.Or(o.Stride, 1), o.Padding, cmp.Or(o.Dilation, 1), groups}}
	l.Weight, l.Bias = l.weightAndBias(o.NoBias, out, out, in/groups, kernel)
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

func (l *conv) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	operator := l.operator
	if operator == ownConv2d && l.Weight.Shared() { // see Linear.Forward
		operator = "aten::conv2d"
	}
	return c.Op(operator, append([]any{x, l.Weight.Tensor(), l.Bias.Tensor()}, l.args...)...)
}
