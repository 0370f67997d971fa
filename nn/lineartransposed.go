package nn

import "penstock.example/torch"

// LinearTransposed is y = x W + b over the last dimension, [*, in] to [*, out]: a Linear whose
// weight lies the other way round. GPT-2's code has these, under the name of Conv1D.
type LinearTransposed struct {
	Base
	Weight *Param // [in, out]
	Bias   *Param // [out]
}

// NewLinearTransposed makes a LinearTransposed. Weight and bias start uniform within 1/sqrt(in), as
// those of Linear.
func NewLinearTransposed(in, out int64) *LinearTransposed {
	requirePositive("LinearTransposed", "in", in)
	requirePositive("LinearTransposed", "out", out)
	l := &LinearTransposed{}
	l.Weight = l.Param("weight", FanIn(in), in, out)
	l.Bias = l.Param("bias", FanIn(in), out)
	return l
}

// Forward is aten::linear with a view of the weight.
func (l *LinearTransposed) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	mark := c.Mark()
	y := c.Linear(x, c.Transpose(l.Weight.Tensor(), 0, 1), l.Bias.Tensor())
	c.Release(mark, y)
	return y
}
