package nn

import (
	"cmp"

	"penstock.example/torch"
)

// operatorLayer runs one operator of libtorch, without parameters.
type operatorLayer struct {
	Base
	kind     string // such as "ReLU", for summaries and errors
	operator string
	args     []any // after the input
	inPlace  bool
}

func newOperatorLayer(kind, operator string, args ...any) Layer {
	return &operatorLayer{kind: kind, operator: operator, args: args}
}

func (l *operatorLayer) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	return c.Op(l.operator, append([]any{x}, l.args...)...)
}

func (l *operatorLayer) OverwritesInput() bool { return l.inPlace }

func NewReLU() Layer { return newOperatorLayer("ReLU", "penstock::relu") }

// NewReLUInPlace makes a ReLU that overwrites its input and returns it; see InPlace.
func NewReLUInPlace() Layer {
	return &operatorLayer{kind: "ReLU", operator: "aten::relu_", inPlace: true}
}

// NewLeakyReLU makes max(x, 0) + slope min(x, 0) (Maas et al. 2013). A slope of 0 stands for
// PyTorch's 0.01. In place the slope must be positive, as backward reads the sign of x from the
// result.
func NewLeakyReLU(slope float64, inPlace bool) Layer {
	operator := "aten::leaky_relu"
	if inPlace {
		operator += "_"
	}
	return &operatorLayer{kind: "LeakyReLU", operator: operator, args: []any{cmp.Or(slope, 0.01)},
		inPlace: inPlace}
}

// NewGELU makes the exact GELU: x times the normal distribution's cumulative function of x
// (Hendrycks and Gimpel 2016).
func NewGELU() Layer { return newOperatorLayer("GELU", "penstock::gelu", "none") }

// NewGELUTanh makes GPT-2's approximation x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
func NewGELUTanh() Layer { return newOperatorLayer("GELU", "penstock::gelu", "tanh") }

// NewSiLU makes x sigmoid(x) (Elfwing, Uchibe and Doya 2017, "Sigmoid-Weighted Linear Units for
// Neural Network Function Approximation in Reinforcement Learning"), also known as swish.
func NewSiLU() Layer { return newOperatorLayer("SiLU", "aten::silu") }

// NewTanh makes the hyperbolic tangent, and NewSigmoid 1 / (1 + exp(-x)).
func NewTanh() Layer    { return newOperatorLayer("Tanh", "aten::tanh") }
func NewSigmoid() Layer { return newOperatorLayer("Sigmoid", "aten::sigmoid") }

// NewSoftmax makes exp(x) / sum(exp(x)) along dim, and NewLogSoftmax its logarithm, computed
// without overflow. A negative dim counts from the end.
func NewSoftmax(dim int64) Layer { return newOperatorLayer("Softmax", "aten::softmax.int", dim) }
func NewLogSoftmax(dim int64) Layer {
	return newOperatorLayer("LogSoftmax", "aten::log_softmax.int", dim)
}

// NewFlatten merges the dimensions from start to end, inclusive; negative ones count from the end.
// NewFlatten(1, -1) is PyTorch's default: [N, ...] to [N, features]. The result is a view if the
// strides allow it.
func NewFlatten(start, end int64) Layer {
	return newOperatorLayer("Flatten", "aten::flatten.using_ints", start, end)
}
