package pipe_test

import (
	"penstock.example/nn"
	"penstock.example/torch"
)

// linear is a Linear with its ReLU, as small as a layer gets.
type linear struct {
	nn.Base
	weight, bias *nn.Param
}

func newLinear(in, out int64) *linear {
	l := &linear{}
	l.weight = l.Param("weight", nn.FanIn(in), out, in)
	l.bias = l.Param("bias", nn.FanIn(in), out)
	return l
}

func (l *linear) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	y := c.Linear(x, l.weight.Tensor(), l.bias.Tensor())
	z := c.Op("penstock::relu", y)
	y.Free()
	return z
}

type squares struct{}

func (squares) Forward(c *nn.Ctx, y, t *torch.Tensor) *torch.Tensor {
	return c.Op("aten::mse_loss", y, t, torch.ReduceMean)
}
func (squares) Reduction() torch.Reduction { return torch.ReduceMean }
