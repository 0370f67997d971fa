package torch

// Reduction says how a loss becomes a number. The values are libtorch's.
type Reduction int64

// The reductions.
const (
	ReduceMean Reduction = 1
	ReduceSum  Reduction = 2
)

// Linear is input [*, in] times weight [out, in] transposed, plus bias [out] (may be nil). Its backward
// adds to the gradient of weight in place.
func (c *Ctx) Linear(input, weight, bias *Tensor) *Tensor {
	return c.op("penstock::linear").t(input).t(weight).t(bias).one()
}

// PlainLinear is Linear of input as a matrix of rows, where autograd sums the gradient of weight. It is
// for a weight with several uses in one graph, whose sum then has one order.
func (c *Ctx) PlainLinear(input, weight, bias *Tensor) *Tensor {
	return c.op("penstock::plain_linear").t(input).t(weight).t(bias).one()
}

// Conv2d is of input [N, in, H, W], weight [out, in/groups, kH, kW] and bias [out] (may be nil). Of few
// positions it is a product of matrices, with a backward that adds to the gradient of weight in place.
func (c *Ctx) Conv2d(input, weight, bias *Tensor, stride, padding, dilation []int64, groups int64) *Tensor {
	return c.conv("penstock::conv2d", input, weight, bias, stride, padding, dilation).i(groups).one()
}

// PlainConv2d is libtorch's own Conv2d, for weights as those of PlainLinear.
func (c *Ctx) PlainConv2d(input, weight, bias *Tensor, stride, padding, dilation []int64,
	groups int64) *Tensor {
	return c.conv("aten::conv2d", input, weight, bias, stride, padding, dilation).i(groups).one()
}

// Conv1d is of input [N, in, L], weight [out, in/groups, k] and bias [out] (may be nil).
func (c *Ctx) Conv1d(input, weight, bias *Tensor, stride, padding, dilation, groups int64) *Tensor {
	return c.conv("aten::conv1d", input, weight, bias, []int64{stride}, []int64{padding},
		[]int64{dilation}).i(groups).one()
}

// ConvTranspose2d is of input [N, in, H, W], weight [in, out/groups, kH, kW] and bias [out] (may be nil).
func (c *Ctx) ConvTranspose2d(input, weight, bias *Tensor, stride, padding, outputPadding []int64,
	groups int64, dilation []int64) *Tensor {
	return c.conv("aten::conv_transpose2d.input", input, weight, bias, stride, padding,
		outputPadding).i(groups).is(dilation).one()
}

func (c *Ctx) conv(op string, input, weight, bias *Tensor, sizes ...[]int64) *encoder {
	e := c.op(op).t(input).t(weight).t(bias)
	for _, s := range sizes {
		e.is(s)
	}
	return e
}

// BatchNorm is over dimension 1. With training set it normalises by the batch and, if mean and variance
// are not nil, moves them in place.
func (c *Ctx) BatchNorm(input, weight, bias, mean, variance *Tensor, training bool, momentum,
	eps float64) *Tensor {
	e := c.op("aten::batch_norm").t(input).t(weight).t(bias).t(mean).t(variance)
	return e.b(training).f(momentum).f(eps).b(true).one()
}

// LayerNorm is over the last len(shape) dimensions. Weight and bias may be nil.
func (c *Ctx) LayerNorm(input *Tensor, shape []int64, weight, bias *Tensor, eps float64) *Tensor {
	return c.op("aten::layer_norm").t(input).is(shape).t(weight).t(bias).f(eps).one()
}

// GroupNorm is of input [N, C, ...] in groups of channels; weight and bias [C] may be nil.
func (c *Ctx) GroupNorm(input *Tensor, groups int64, weight, bias *Tensor, eps float64) *Tensor {
	return c.op("aten::group_norm").t(input).i(groups).t(weight).t(bias).f(eps).one()
}

// Embedding takes rows of weight [n, dim] by int64 indices; paddingIndex -1 is none.
func (c *Ctx) Embedding(weight, indices *Tensor, paddingIndex int64) *Tensor {
	return c.op("aten::embedding").t(weight).t(indices).i(paddingIndex).one()
}

func (c *Ctx) ReLU(a *Tensor) *Tensor  { return c.op("penstock::relu").t(a).one() }
func (c *Ctx) ReLU_(a *Tensor) *Tensor { return c.op("aten::relu_").t(a).same(a) }
func (c *Ctx) LeakyReLU(a *Tensor, slope float64) *Tensor {
	return c.op("aten::leaky_relu").t(a).f(slope).one()
}
func (c *Ctx) LeakyReLU_(a *Tensor, slope float64) *Tensor {
	return c.op("aten::leaky_relu_").t(a).f(slope).same(a)
}

// GELU has a backward that is right for every layout of the gradient; approximate is "none" or "tanh".
func (c *Ctx) GELU(a *Tensor, approximate string) *Tensor {
	return c.op("penstock::gelu").t(a).s(approximate).one()
}

func (c *Ctx) SiLU(a *Tensor) *Tensor    { return c.op("aten::silu").t(a).one() }
func (c *Ctx) Tanh(a *Tensor) *Tensor    { return c.op("aten::tanh").t(a).one() }
func (c *Ctx) Sigmoid(a *Tensor) *Tensor { return c.op("aten::sigmoid").t(a).one() }
func (c *Ctx) Softmax(a *Tensor, dim int64) *Tensor {
	return c.op("aten::softmax.int").t(a).i(dim).one()
}
func (c *Ctx) LogSoftmax(a *Tensor, dim int64) *Tensor {
	return c.op("aten::log_softmax.int").t(a).i(dim).one()
}

// MaxPool2d and AvgPool2d take an empty stride for the kernel's size.
func (c *Ctx) MaxPool2d(a *Tensor, kernel, stride, padding, dilation []int64, ceil bool) *Tensor {
	return c.op("aten::max_pool2d").t(a).is(kernel).is(stride).is(padding).is(dilation).b(ceil).one()
}
func (c *Ctx) AvgPool2d(a *Tensor, kernel, stride, padding []int64, ceil, countPadding bool) *Tensor {
	return c.op("aten::avg_pool2d").t(a).is(kernel).is(stride).is(padding).b(ceil).b(countPadding).one()
}
func (c *Ctx) AdaptiveAvgPool2d(a *Tensor, size []int64) *Tensor {
	return c.op("aten::adaptive_avg_pool2d").t(a).is(size).one()
}

// UpsampleNearest2d and UpsampleBilinear2d take a size or a scale, the other nil.
func (c *Ctx) UpsampleNearest2d(a *Tensor, size []int64, scale []float64) *Tensor {
	return c.op("aten::upsample_nearest2d.vec").t(a).is(size).fs(scale).one()
}
func (c *Ctx) UpsampleBilinear2d(a *Tensor, size []int64, scale []float64, alignCorners bool) *Tensor {
	return c.op("aten::upsample_bilinear2d.vec").t(a).is(size).b(alignCorners).fs(scale).one()
}

// CrossEntropy is of logits [N, C, ...] and int64 classes [N, ...]; weight [C] may be nil.
func (c *Ctx) CrossEntropy(logits, target, weight *Tensor, r Reduction, ignoreIndex int64,
	smoothing float64) *Tensor {
	e := c.op("aten::cross_entropy_loss").t(logits).t(target).t(weight)
	return e.i(int64(r)).i(ignoreIndex).f(smoothing).one()
}

// NLL is of log-probabilities [N, C, ...] and int64 classes [N, ...]; weight [C] may be nil.
func (c *Ctx) NLL(a, target, weight *Tensor, r Reduction, ignoreIndex int64) *Tensor {
	return c.op("aten::nll_loss_nd").t(a).t(target).t(weight).i(int64(r)).i(ignoreIndex).one()
}

func (c *Ctx) MSE(a, target *Tensor, r Reduction) *Tensor {
	return c.op("aten::mse_loss").t(a).t(target).i(int64(r)).one()
}
func (c *Ctx) L1(a, target *Tensor, r Reduction) *Tensor {
	return c.op("aten::l1_loss").t(a).t(target).i(int64(r)).one()
}
func (c *Ctx) Huber(a, target *Tensor, r Reduction, delta float64) *Tensor {
	return c.op("aten::huber_loss").t(a).t(target).i(int64(r)).f(delta).one()
}

// BCEWithLogits is binary cross-entropy; weight and posWeight may be nil.
func (c *Ctx) BCEWithLogits(logits, target, weight, posWeight *Tensor, r Reduction) *Tensor {
	e := c.op("aten::binary_cross_entropy_with_logits").t(logits).t(target)
	return e.t(weight).t(posWeight).i(int64(r)).one()
}
