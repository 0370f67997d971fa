package nn

import (
	"cmp"

	"penstock.example/torch"
)

// operation is a layer that runs one operator of libtorch, without parameters.
type operation struct {
	Base
	kind     string // such as "ReLU", for summaries and errors
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

func NewReLU() Layer { return newOperation("ReLU", "penstock::relu") }

// NewReLUInPlace makes a ReLU that overwrites its input and returns it; see InPlace.
func NewReLUInPlace() Layer {
	return &operation{kind: "ReLU", operator: "aten::relu_", inPlace: true}
}

// NewLeakyReLU makes x where x is positive and slope x elsewhere (Maas et al. 2013). A slope of 0
// stands for PyTorch's 0.01. In place the slope must be positive, as backward reads the sign of x
// from the result.
func NewLeakyReLU(slope float64, inPlace bool) Layer {
	operator := "aten::leaky_relu"
	if inPlace {
		operator += "_"
	}
	return &operation{kind: "LeakyReLU", operator: operator, args: []any{cmp.Or(slope, 0.01)},
		inPlace: inPlace}
}

// NewGELU makes the exact GELU: x times the normal distribution's cumulative function of x
// (Hendrycks and Gimpel 2016).
func NewGELU() Layer { return newOperation("GELU", "penstock::gelu", "none") }

// NewGELUTanh makes GPT-2's approximation x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
func NewGELUTanh() Layer { return newOperation("GELU", "penstock::gelu", "tanh") }

// NewSiLU makes x sigmoid(x) (Elfwing, Uchibe and Doya 2017, "Sigmoid-Weighted Linear Units for
// Neural Network Function Approximation in Reinforcement Learning"), also known as swish.
func NewSiLU() Layer { return newOperation("SiLU", "aten::silu") }

// NewTanh makes the hyperbolic tangent, and NewSigmoid 1 / (1 + exp(-x)).
func NewTanh() Layer    { return newOperation("Tanh", "aten::tanh") }
func NewSigmoid() Layer { return newOperation("Sigmoid", "aten::sigmoid") }

// NewSoftmax makes exp(x) / sum(exp(x)) along dim, and NewLogSoftmax its logarithm, computed
// without overflow. A negative dim counts from the end.
func NewSoftmax(dim int64) Layer    { return newOperation("Softmax", "aten::softmax.int", dim) }
func NewLogSoftmax(dim int64) Layer { return newOperation("LogSoftmax", "aten::log_softmax.int", dim) }

// NewFlatten merges the dimensions from start to end, inclusive; negative ones count from the end.
// NewFlatten(1, -1) is PyTorch's default: [N, ...] to [N, features]. The result is a view if the
// strides allow it.
func NewFlatten(start, end int64) Layer {
	return newOperation("Flatten", "aten::flatten.using_ints", start, end)
}
