package nn

import (
	"penstock.example/torch"
)

// Linear is y = x W^T + b over the last dimension: [*, in] to [*, out].
type Linear struct {
	Base
	adapted
	Weight *Param // [out, in]
	Bias   *Param // [out]; nil without
}

// NewLinear makes a Linear with a bias. Weight and bias start uniform within 1/sqrt(in).
func NewLinear(in, out int64) *Linear { return newLinear(in, out, true) }

// NewLinearNoBias makes a Linear without a bias.
func NewLinearNoBias(in, out int64) *Linear { return newLinear(in, out, false) }

func newLinear(in, out int64, bias bool) *Linear {
	l := &Linear{}
	l.Weight, l.Bias = l.weightAndBias(!bias, out, out, in)
	return l
}

// NewLinearShared makes a Linear whose weight [out, in] is another module's parameter.
func NewLinearShared(weight *Param, bias bool) *Linear {
	l := &Linear{}
	l.Weight = l.Share("weight", weight)
	if bias {
		l.Bias = l.Param("bias", FanIn(weight.Shape()[1]), weight.Shape()[0])
	}
	return l
}

func (l *Linear) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	if l.Weight.Shared() { // autograd then sums the gradients of the uses in one order, on any stages
		return l.adapt(c, x, c.PlainLinear(x, l.Weight.Tensor(), l.Bias.Tensor()))
	}
	return l.adapt(c, x, c.Linear(x, l.Weight.Tensor(), l.Bias.Tensor()))
}

func (l *Linear) sizes() (in, out int64) { return l.Weight.shape[1], l.Weight.shape[0] }

// linearTransposed is y = x W + b over the last dimension: GPT-2's Conv1D.
type linearTransposed struct {
	Base
	adapted
	Weight *Param // [in, out]
	Bias   *Param // [out]
}

// NewLinearTransposed makes a Linear with a transposed weight [in, out], as GPT-2's code has them
// under the name of Conv1D. Weight and bias start as NewLinear's.
func NewLinearTransposed(in, out int64) Layer {
	l := &linearTransposed{}
	l.Weight, l.Bias = l.Param("weight", FanIn(in), in, out), l.Param("bias", FanIn(in), out)
	return l
}

func (l *linearTransposed) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	mark := c.Mark()
	y := c.Linear(x, c.Transpose(l.Weight.Tensor(), 0, 1), l.Bias.Tensor())
	c.Release(mark, y)
	return l.adapt(c, x, y)
}

func (l *linearTransposed) sizes() (in, out int64) { return l.Weight.shape[0], l.Weight.shape[1] }
