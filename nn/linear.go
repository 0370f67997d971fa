package nn

import "penstock/torch"

// Linear is y = x W^T + b over the last dimension: [*, in] to [*, out].
type Linear struct {
	Base
	Weight *Param // [out, in]
	Bias   *Param // [out]; nil without
}

// NewLinear makes a Linear with a bias. Weight and bias start uniform within 1/sqrt(in).
func NewLinear(in, out int64) *Linear {
	l := NewLinearNoBias(in, out)
	l.Bias = l.Param("bias", FanIn(in), out)
	return l
}

// NewLinearNoBias makes a Linear without a bias.
func NewLinearNoBias(in, out int64) *Linear {
	requirePositive("Linear", "in", in)
	requirePositive("Linear", "out", out)
	l := &Linear{}
	l.Weight = l.Param("weight", FanIn(in), out, in)
	return l
}

// Forward is aten::linear.
func (l *Linear) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	return c.Linear(x, l.Weight.Tensor(), l.Bias.Tensor())
}
