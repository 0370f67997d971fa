package nn

import (
	"penstock.example/torch"
)

// ReLU is max(x, 0).
type ReLU struct {
	Base
	inPlace bool
}

// NewReLU makes a ReLU that returns a new tensor.
func NewReLU() *ReLU { return &ReLU{} }

// NewReLUInPlace makes a ReLU that overwrites its input and returns it: it takes no memory. What
// came before must not need its own output to compute its gradient, or the backward fails; Linear,
// Conv2d and BatchNorm do not. What the graph keeps is the same as with NewReLU.
func NewReLUInPlace() *ReLU { return &ReLU{inPlace: true} }

// Forward is penstock::relu, which is aten::relu, or aten::relu_.
func (l *ReLU) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	if l.inPlace {
		return c.ReLU_(x)
	}
	return c.ReLU(x)
}

func (l *ReLU) OverwritesInput() bool { return l.inPlace }

// GELU is x times the normal distribution's cumulative function of x (Hendrycks and Gimpel 2016).
type GELU struct {
	Base
	approximate string
}

// NewGELU makes the exact GELU.
func NewGELU() *GELU { return &GELU{approximate: "none"} }

// NewGELUTanh makes the approximation x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), which GPT-2
// uses.
func NewGELUTanh() *GELU                                      { return &GELU{approximate: "tanh"} }
func (l *GELU) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor { return c.GELU(x, l.approximate) }

// SiLU is x sigmoid(x) (Elfwing, Uchibe and Doya 2017, "Sigmoid-Weighted Linear Units for Neural
// Network Function Approximation in Reinforcement Learning"), also known as swish.
type SiLU struct{ Base }

func NewSiLU() *SiLU                                          { return &SiLU{} }
func (l *SiLU) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor { return c.SiLU(x) }

// Tanh is the hyperbolic tangent.
type Tanh struct{ Base }

func NewTanh() *Tanh                                          { return &Tanh{} }
func (l *Tanh) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor { return c.Tanh(x) }

// Sigmoid is 1 / (1 + exp(-x)).
type Sigmoid struct{ Base }

func NewSigmoid() *Sigmoid                                       { return &Sigmoid{} }
func (l *Sigmoid) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor { return c.Sigmoid(x) }

// Softmax is exp(x) / sum(exp(x)) along a dimension.
type Softmax struct {
	Base
	dim int64
}

// NewSoftmax makes a Softmax along dim; a negative one counts from the end.
func NewSoftmax(dim int64) *Softmax                              { return &Softmax{dim: dim} }
func (l *Softmax) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor { return c.Softmax(x, l.dim) }

// LogSoftmax is the logarithm of Softmax, computed without overflow.
type LogSoftmax struct {
	Base
	dim int64
}

// NewLogSoftmax makes a LogSoftmax along dim; a negative one counts from the end.
func NewLogSoftmax(dim int64) *LogSoftmax                           { return &LogSoftmax{dim: dim} }
func (l *LogSoftmax) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor { return c.LogSoftmax(x, l.dim) }

// LeakyReLU is x where x is positive and slope x elsewhere (Maas et al. 2013).
type LeakyReLU struct {
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
func NewLeakyReLU(o LeakyReLUConfig) *LeakyReLU {
	if o.Slope == 0 {
		o.Slope = 0.01
	}
	return &LeakyReLU{slope: o.Slope, inPlace: o.InPlace}
}

// Forward is aten::leaky_relu or aten::leaky_relu_.
func (l *LeakyReLU) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	if !l.inPlace {
		return c.LeakyReLU(x, l.slope)
	}
	return c.LeakyReLU_(x, l.slope)
}

func (l *LeakyReLU) OverwritesInput() bool { return l.inPlace }
