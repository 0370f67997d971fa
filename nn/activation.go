package nn

import (
	"cmp"

	"penstock.example/torch"
)

// operation is a layer that is one operator of libtorch, without parameters.
type operation struct {
	Base
	kind     string // for people, such as "ReLU"
	operator string
	args     []any // after the input
	inPlace  bool
}

func newOperation(kind, operator string, args ...any) Layer {
	return &operation{kind: kind, operator: operator, args: args}
}

func (l *operation) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	return c.Op(l.operator, append([]any{x}, l.args...)...)
}

func (l *operation) OverwritesInput() bool { return l.inPlace }

// NewReLU makes max(x, 0), a new tensor.
func NewReLU() Layer { return newOperation("ReLU", "penstock::relu") }

// NewReLUInPlace makes a ReLU that overwrites its input and returns it: it takes no memory. What
// came before must not need its own output to compute its gradient, or the backward fails; Linear,
// Conv2d and BatchNorm do not. The graph keeps as much as with NewReLU.
func NewReLUInPlace() Layer {
	return &operation{kind: "ReLU", operator: "aten::relu_", inPlace: true}
}

// NewLeakyReLU makes a layer that is x where x is positive and slope x elsewhere (Maas et al. 2013). A
// slope of 0 is PyTorch's 0.01. In place, the slope must be positive, as the gradient is told from the
// result's sign; see NewReLUInPlace for what may come before.
func NewLeakyReLU(slope float64, inPlace bool) Layer {
	l := &operation{kind: "LeakyReLU", operator: "aten::leaky_relu", args: []any{cmp.Or(slope, 0.01)},
		inPlace: inPlace}
	if inPlace {
		l.operator += "_"
	}
	return l
}

// NewGELU makes the exact GELU: x times the normal distribution's cumulative function of x (Hendrycks
// and Gimpel 2016).
func NewGELU() Layer { return newOperation("GELU", "penstock::gelu", "none") }

// NewGELUTanh makes the approximation x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), which GPT-2
// uses.
func NewGELUTanh() Layer { return newOperation("GELU", "penstock::gelu", "tanh") }

// NewSiLU makes x sigmoid(x) (Elfwing, Uchibe and Doya 2017, "Sigmoid-Weighted Linear Units for Neural
// Network Function Approximation in Reinforcement Learning"), also known as swish.
func NewSiLU() Layer { return newOperation("SiLU", "aten::silu") }

// NewTanh makes the hyperbolic tangent, and NewSigmoid 1 / (1 + exp(-x)).
func NewTanh() Layer    { return newOperation("Tanh", "aten::tanh") }
func NewSigmoid() Layer { return newOperation("Sigmoid", "aten::sigmoid") }

// NewSoftmax makes exp(x) / sum(exp(x)) along dim, and NewLogSoftmax its logarithm, computed without
// overflow. A negative dim counts from the end.
func NewSoftmax(dim int64) Layer    { return newOperation("Softmax", "aten::softmax.int", dim) }
func NewLogSoftmax(dim int64) Layer { return newOperation("LogSoftmax", "aten::log_softmax.int", dim) }

// NewFlatten makes one dimension of the dimensions from start to end, inclusive; negative ones count
// from the end. NewFlatten(1, -1) is PyTorch's default: [N, ...] to [N, features]. The result is a view
// where memory allows.
func NewFlatten(start, end int64) Layer {
	return newOperation("Flatten", "aten::flatten.using_ints", start, end)
}
