package nn

import (
	"cmp"

	"penstock.example/torch"
)

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
	// Groups splits input and output channels into so many groups that do not see each other; 0 is
	// 1
	Groups int64
	NoBias bool
}

// NewConv1d makes a Conv1d. Weight and bias start uniform within 1/sqrt(in/groups * kernel).
func NewConv1d(in, out, kernel int64, o Conv1dConfig) *Conv1d {
	l := &Conv1d{stride: cmp.Or(o.Stride, 1), padding: o.Padding, dilation: cmp.Or(o.Dilation, 1), groups: cmp.Or(o.Groups, 1)}
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
