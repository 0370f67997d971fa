package nn

import (
	"cmp"
	"fmt"

	"penstock.example/torch"
)

// GroupNorm normalises groups of channels of each sample to mean 0 and variance 1, then scales and
// shifts each channel: [N, channels, ...] to the same (Wu and He 2018). It does the same in training
// and evaluation and knows no other samples, so micro-batches change nothing.
type GroupNorm struct {
	Base
	Weight, Bias *Param // [channels]; nil with NoAffine

	groups, channels int64
	eps              float64
}

// GroupNormConfig configures a GroupNorm. The zero value is eps 1e-5, with weight and bias.
type GroupNormConfig struct {
	Eps      float64 // added to the variance; 0 is 1e-5
	NoAffine bool    // no weight and bias
}

// NewGroupNorm makes a GroupNorm of so many groups, which must divide the channels.
func NewGroupNorm(groups, channels int64, o GroupNormConfig) *GroupNorm {
	l := &GroupNorm{groups: groups, channels: channels, eps: cmp.Or(o.Eps, 1e-5)}
	requirePositive("GroupNorm", "groups", groups)
	requirePositive("GroupNorm", "channels", channels)
	require(channels%groups == 0, "GroupNorm: %d groups do not divide %d channels; choose a divisor", groups, channels)
	require(l.eps > 0, "GroupNorm: Eps is %v; it must be positive, or 0 for 1e-5", l.eps)
	if !o.NoAffine {
		l.Weight = l.Param("weight", Ones, channels)
		l.Bias = l.Param("bias", Zeros, channels)
	}
	return l
}

// Forward is aten::group_norm. A group of one value has no variance and is refused. Under autocast,
// with a weight, it normalises in the weight's type and gives that.
func (l *GroupNorm) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	shape := x.Shape()
	refuse := func(message string) {
		panic(&torch.Error{Op: "aten::group_norm", Args: []string{x.String()}, Device: c.Device(), Message: message})
	}
	switch {
	case len(shape) < 2 || shape[1] != l.channels:
		refuse(fmt.Sprintf("expected an input of [N, %d, ...]", l.channels))
	case shape[0] > 0 && x.Numel() == shape[0]*l.groups:
		refuse("expected more than 1 value per group and sample; use fewer groups or larger inputs")
	}
	return c.precisely(x, l.Weight, func(x *torch.Tensor) *torch.Tensor {
		return c.GroupNorm(x, l.groups, l.Weight.Tensor(), l.Bias.Tensor(), l.eps)
	})
}
