package nn

import (
	"penstock.example/torch"
)

// relu is max(x, 0).
type relu struct {
	Base
	inPlace bool
}

// NewReLU makes a ReLU that returns a new tensor.
func NewReLU() Layer { return &relu{} }

// NewReLUInPlace makes a ReLU that overwrites its input and returns it: it takes no memory. What
// came before must not need its own output to compute its gradient, or the backward fails; Linear,
// Conv2d and BatchNorm do not. What the graph keeps is the same as with NewReLU.
func NewReLUInPlace() Layer { return &relu{inPlace: true} }

// Forward is penstock::relu, which is aten::relu, or aten::relu_.
func (l *relu) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	if l.inPlace {
		return c.ReLU_(x)
	}
	return c.ReLU(x)
}

func (l *relu) OverwritesInput() bool { return l.inPlace }

// gelu is x times the normal distribution's cumulative function of x (Hendrycks and Gimpel 2016).
type gelu struct {
	Base
	approximate string
}

// NewGELU makes the exact GELU.
func NewGELU() Layer { return &gelu{approximate: "none"} }

// NewGELUTanh makes the approximation x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), which GPT-2
// uses.
func NewGELUTanh() Layer                                      { return &gelu{approximate: "tanh"} }
func (l *gelu) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor { return c.GELU(x, l.approximate) }

// silu is x sigmoid(x) (Elfwing, Uchibe and Doya 2017, "Sigmoid-Weighted Linear Units for Neural
// Network Function Approximation in Reinforcement Learning"), also known as swish.
type silu struct{ Base }

func NewSiLU() Layer                                          { return &silu{} }
func (l *silu) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor { return c.Op("aten::silu", x) }

// tanh is the hyperbolic tangent.
type tanh struct{ Base }

func NewTanh() Layer                                          { return &tanh{} }
func (l *tanh) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor { return c.Tanh(x) }

// sigmoid is 1 / (1 + exp(-x)).
type sigmoid struct{ Base }

func NewSigmoid() Layer                                          { return &sigmoid{} }
func (l *sigmoid) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor { return c.Op("aten::sigmoid", x) }

// softmax is exp(x) / sum(exp(x)) along a dimension.
type softmax struct {
	Base
	dim int64
}

// NewSoftmax makes a Softmax along dim; a negative one counts from the end.
func NewSoftmax(dim int64) Layer { return &softmax{dim: dim} }
func (l *softmax) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	return c.Op("aten::softmax.int", x, l.dim)
}

// logSoftmax is the logarithm of Softmax, computed without overflow.
type logSoftmax struct {
	Base
	dim int64
}

// NewLogSoftmax makes a LogSoftmax along dim; a negative one counts from the end.
func NewLogSoftmax(dim int64) Layer { return &logSoftmax{dim: dim} }
func (l *logSoftmax) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	return c.Op("aten::log_softmax.int", x, l.dim)
}

// leakyReLU is x where x is positive and slope x elsewhere (Maas et al. 2013).
type leakyReLU struct {
	Base
	slope   float64
	inPlace bool
}

// LeakyReLUConfig configures a LeakyReLU. The zero value has PyTorch's slope and returns a new
// tensor.
type LeakyReLUConfig struct {
	Slope   float64 // below zero; 0 is 0.01
	InPlace bool    // overwrite the input and return it; see NewReLUInPlace for what may come before
}

// NewLeakyReLU makes a LeakyReLU. In place, the slope must be positive: the gradient is told from
// the result's sign.
func NewLeakyReLU(o LeakyReLUConfig) Layer {
	if o.Slope == 0 {
		o.Slope = 0.01
	}
	return &leakyReLU{slope: o.Slope, inPlace: o.InPlace}
}

// Forward is aten::leaky_relu or aten::leaky_relu_.
func (l *leakyReLU) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	if !l.inPlace {
		return c.Op("aten::leaky_relu", x, l.slope)
	}
	return c.Op("aten::leaky_relu_", x, l.slope)
}

func (l *leakyReLU) OverwritesInput() bool { return l.inPlace }
