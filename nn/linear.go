package nn

import (
	"penstock.example/torch"
)

// Linear is y = x W^T + b over the last dimension: [*, in] to [*, out].
type Linear struct {
	Base
	Weight *Param // [out, in]; from NewLinearTransposed [in, out]
	Bias   *Param // [out]; nil without

	transposed bool
	adapter    *adapter // nil without
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

// NewLinearTransposed makes a Linear with a transposed weight [in, out], which GPT-2's code calls
// Conv1D. Weight and bias start uniform within 1/sqrt(in).
func NewLinearTransposed(in, out int64) Layer {
	l := &Linear{transposed: true}
	l.Weight, l.Bias = l.Param("weight", FanIn(in), in, out), l.Param("bias", FanIn(in), out)
	return l
}

func (l *Linear) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	mark, linear, weight := c.Mark(), c.Linear, l.Weight.Tensor()
	if l.transposed {
		weight = c.Transpose(weight, 0, 1)
	} else if l.Weight.Shared() { // autograd sums the gradients of all uses, in one order for any cut
		linear = c.PlainLinear
	}
	y := linear(x, weight, l.Bias.Tensor())
	if l.adapter != nil {
		l.adapter.addTo(c, x, y)
	}
	c.Release(mark, y)
	return y
}

// linear finds the Linear of a layer, also of one that embeds a Linear; see linears.
func (l *Linear) linear() *Linear { return l }
