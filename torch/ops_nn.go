package torch

var (
	opLinear        = declare("penstock::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor")
	opPlainLinear   = declare("penstock::plain_linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor")
	opConv2d        = declare("penstock::conv2d(Tensor input, Tensor weight, Tensor? bias=None, int[2] stride=1, int[2] padding=0, int[2] dilation=1, int groups=1) -> Tensor")
	opPlainConv2d   = declare("aten::conv2d(Tensor input, Tensor weight, Tensor? bias=None, int[2] stride=1, int[2] padding=0, int[2] dilation=1, int groups=1) -> Tensor")
	opConv1d        = declare("aten::conv1d(Tensor input, Tensor weight, Tensor? bias=None, int[1] stride=1, int[1] padding=0, int[1] dilation=1, int groups=1) -> Tensor")
	opConvTrans2d   = declare("aten::conv_transpose2d.input(Tensor input, Tensor weight, Tensor? bias=None, int[2] stride=1, int[2] padding=0, int[2] output_padding=0, int groups=1, int[2] dilation=1) -> Tensor")
	opBatchNorm     = declare("aten::batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, bool training, float momentum, float eps, bool cudnn_enabled) -> Tensor")
	opLayerNorm     = declare("aten::layer_norm(Tensor input, int[] normalized_shape, Tensor? weight=None, Tensor? bias=None, float eps=1.0000000000000001e-05) -> Tensor")
	opGroupNorm     = declare("aten::group_norm(Tensor input, int num_groups, Tensor? weight=None, Tensor? bias=None, float eps=1.0000000000000001e-05) -> Tensor")
	opEmbedding     = declare("aten::embedding(Tensor weight, Tensor indices, int padding_idx=-1) -> Tensor")
	opReLU          = declare("penstock::relu(Tensor self) -> Tensor")
	opReLU_         = declare("aten::relu_(Tensor(a!) self) -> Tensor(a!)")
	opLeakyReLU     = declare("aten::leaky_relu(Tensor self, Scalar negative_slope=0.01) -> Tensor")
	opLeakyReLU_    = declare("aten::leaky_relu_(Tensor(a!) self, Scalar negative_slope=0.01) -> Tensor(a!)")
	opGELU          = declare(`penstock::gelu(Tensor self, *, str approximate="none") -> Tensor`)
	opSiLU          = declare("aten::silu(Tensor self) -> Tensor")
	opTanh          = declare("aten::tanh(Tensor self) -> Tensor")
	opSigmoid       = declare("aten::sigmoid(Tensor self) -> Tensor")
	opSoftmax       = declare("aten::softmax.int(Tensor self, int dim) -> Tensor")
	opLogSoftmax    = declare("aten::log_softmax.int(Tensor self, int dim) -> Tensor")
	opMaxPool2d     = declare("aten::max_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, int[2] dilation=1, bool ceil_mode=False) -> Tensor")
	opAvgPool2d     = declare("aten::avg_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, bool ceil_mode=False, bool count_include_pad=True) -> Tensor")
	opAdaptiveAvg2d = declare("aten::adaptive_avg_pool2d(Tensor self, int[2] output_size) -> Tensor")
	opNearest2d     = declare("aten::upsample_nearest2d.vec(Tensor input, int[]? output_size, float[]? scale_factors) -> Tensor")
	opBilinear2d    = declare("aten::upsample_bilinear2d.vec(Tensor input, int[]? output_size, bool align_corners, float[]? scale_factors) -> Tensor")
	opCrossEntropy  = declare("aten::cross_entropy_loss(Tensor self, Tensor target, Tensor? weight=None, int reduction=1, int ignore_index=-100, float label_smoothing=0.) -> Tensor")
	opMSE           = declare("aten::mse_loss(Tensor self, Tensor target, int reduction=1) -> Tensor")
	opL1            = declare("aten::l1_loss(Tensor self, Tensor target, int reduction=1) -> Tensor")
	opHuber         = declare("aten::huber_loss(Tensor self, Tensor target, int reduction=1, float delta=1.) -> Tensor")
	opNLL           = declare("aten::nll_loss_nd(Tensor self, Tensor target, Tensor? weight=None, int reduction=1, int ignore_index=-100) -> Tensor")
	opBCEWithLogits = declare("aten::binary_cross_entropy_with_logits(Tensor self, Tensor target, Tensor? weight=None, Tensor? pos_weight=None, int reduction=1) -> Tensor")
)

// Reduction says how a loss becomes a number. The values are libtorch's.
type Reduction int64

// The reductions.
const (
	ReduceMean Reduction = 1
	ReduceSum  Reduction = 2
)

// Linear is penstock::linear, which is aten::linear with a backward that adds to the gradient of
// weight in place: input [*, in] times weight [out, in] transposed, plus bias [out] (may be nil).
func (c *Ctx) Linear(input, weight, bias *Tensor) *Tensor {
	return c.begin(opLinear).t(input).t(weight).t(bias).one()
}

// PlainLinear is penstock::plain_linear, which is aten::linear of input [*, in] as a matrix of rows:
// autograd sums the gradient of weight. It is for a weight with several uses in one graph, whose sum
// then has one order.
func (c *Ctx) PlainLinear(input, weight, bias *Tensor) *Tensor {
	return c.begin(opPlainLinear).t(input).t(weight).t(bias).one()
}

// Conv2d is penstock::conv2d, which is aten::conv2d, and of few positions a product of matrices with a
// backward that adds to the gradient of weight in place: input [N, in, H, W], weight [out, in/groups,
// kH, kW], bias [out] (may be nil).
func (c *Ctx) Conv2d(input, weight, bias *Tensor, stride, padding, dilation []int64, groups int64) *Tensor {
	return c.begin(opConv2d).t(input).t(weight).t(bias).is(stride).is(padding).is(dilation).i(groups).one()
}

// PlainConv2d is aten::conv2d: autograd sums the gradient of weight. It is for a weight with several
// uses in one graph, whose sum then has one order.
func (c *Ctx) PlainConv2d(input, weight, bias *Tensor, stride, padding, dilation []int64,
	groups int64) *Tensor {
	return c.begin(opPlainConv2d).t(input).t(weight).t(bias).is(stride).is(padding).is(dilation).i(groups).one()
}

// Conv1d is aten::conv1d: input [N, in, L], weight [out, in/groups, k], bias [out] (may be nil).
func (c *Ctx) Conv1d(input, weight, bias *Tensor, stride, padding, dilation, groups int64) *Tensor {
	return c.begin(opConv1d).t(input).t(weight).t(bias).
		is([]int64{stride}).is([]int64{padding}).is([]int64{dilation}).i(groups).one()
}

// ConvTranspose2d is aten::conv_transpose2d.input: input [N, in, H, W], weight [in, out/groups, kH,
// kW], bias [out] (may be nil).
func (c *Ctx) ConvTranspose2d(input, weight, bias *Tensor, stride, padding, outputPadding []int64,
	groups int64, dilation []int64) *Tensor {
	return c.begin(opConvTrans2d).t(input).t(weight).t(bias).is(stride).is(padding).is(outputPadding).i(groups).is(dilation).one()
}

// BatchNorm is aten::batch_norm over dimension 1. With training set it normalises by the batch and,
// if mean and variance are not nil, moves them in place.
func (c *Ctx) BatchNorm(input, weight, bias, mean, variance *Tensor, training bool, momentum,
	eps float64) *Tensor {
	return c.begin(opBatchNorm).t(input).t(weight).t(bias).t(mean).t(variance).b(training).f(momentum).f(eps).b(true).one()
}

// LayerNorm is aten::layer_norm over the last len(shape) dimensions.
func (c *Ctx) LayerNorm(input *Tensor, shape []int64, weight, bias *Tensor, eps float64) *Tensor {
	return c.begin(opLayerNorm).t(input).is(shape).t(weight).t(bias).f(eps).one()
}

// GroupNorm is aten::group_norm of input [N, C, ...] in groups of channels; weight and bias
// [C] may be nil.
func (c *Ctx) GroupNorm(input *Tensor, groups int64, weight, bias *Tensor, eps float64) *Tensor {
	return c.begin(opGroupNorm).t(input).i(groups).t(weight).t(bias).f(eps).one()
}

// Embedding is aten::embedding: rows of weight [n, dim] by int64 indices; paddingIndex -1 is none.
func (c *Ctx) Embedding(weight, indices *Tensor, paddingIndex int64) *Tensor {
	return c.begin(opEmbedding).t(weight).t(indices).i(paddingIndex).one()
}

// ReLU is penstock::relu, which is aten::relu and quicker for few elements.
func (c *Ctx) ReLU(a *Tensor) *Tensor { return c.begin(opReLU).t(a).one() }

// ReLU_ is aten::relu_.
func (c *Ctx) ReLU_(a *Tensor) *Tensor { return c.begin(opReLU_).t(a).same(a) }

// LeakyReLU is aten::leaky_relu.
func (c *Ctx) LeakyReLU(a *Tensor, slope float64) *Tensor {
	return c.begin(opLeakyReLU).t(a).f(slope).one()
}

// LeakyReLU_ is aten::leaky_relu_.
func (c *Ctx) LeakyReLU_(a *Tensor, slope float64) *Tensor {
	return c.begin(opLeakyReLU_).t(a).f(slope).same(a)
}

// GELU is penstock::gelu, which is aten::gelu with a backward that is right for every layout of the
// gradient; approximate is "none" or "tanh".
func (c *Ctx) GELU(a *Tensor, approximate string) *Tensor {
	return c.begin(opGELU).t(a).s(approximate).one()
}

// SiLU is aten::silu.
func (c *Ctx) SiLU(a *Tensor) *Tensor { return c.begin(opSiLU).t(a).one() }

// Tanh is aten::tanh.
func (c *Ctx) Tanh(a *Tensor) *Tensor { return c.begin(opTanh).t(a).one() }

// Sigmoid is aten::sigmoid.
func (c *Ctx) Sigmoid(a *Tensor) *Tensor { return c.begin(opSigmoid).t(a).one() }

// Softmax is aten::softmax.int along a dimension.
func (c *Ctx) Softmax(a *Tensor, dim int64) *Tensor { return c.begin(opSoftmax).t(a).i(dim).one() }

// LogSoftmax is aten::log_softmax.int along a dimension.
func (c *Ctx) LogSoftmax(a *Tensor, dim int64) *Tensor {
	return c.begin(opLogSoftmax).t(a).i(dim).one()
}

// MaxPool2d is aten::max_pool2d; an empty stride is the kernel's size.
func (c *Ctx) MaxPool2d(a *Tensor, kernel, stride, padding, dilation []int64, ceil bool) *Tensor {
	return c.begin(opMaxPool2d).t(a).is(kernel).is(stride).is(padding).is(dilation).b(ceil).one()
}

// AvgPool2d is aten::avg_pool2d; an empty stride is the kernel's size.
func (c *Ctx) AvgPool2d(a *Tensor, kernel, stride, padding []int64, ceil, countIncludePad bool) *Tensor {
	return c.begin(opAvgPool2d).t(a).is(kernel).is(stride).is(padding).b(ceil).b(countIncludePad).one()
}

// AdaptiveAvgPool2d is aten::adaptive_avg_pool2d to a fixed output size.
func (c *Ctx) AdaptiveAvgPool2d(a *Tensor, size []int64) *Tensor {
	return c.begin(opAdaptiveAvg2d).t(a).is(size).one()
}

// UpsampleNearest2d is aten::upsample_nearest2d.vec; give size or scale, the other nil.
func (c *Ctx) UpsampleNearest2d(a *Tensor, size []int64, scale []float64) *Tensor {
	return c.begin(opNearest2d).t(a).is(size).fs(scale).one()
}

// UpsampleBilinear2d is aten::upsample_bilinear2d.vec; give size or scale, the other nil.
func (c *Ctx) UpsampleBilinear2d(a *Tensor, size []int64, scale []float64, alignCorners bool) *Tensor {
	return c.begin(opBilinear2d).t(a).is(size).b(alignCorners).fs(scale).one()
}

// CrossEntropy is aten::cross_entropy_loss of logits [N, C, ...] and int64 classes [N, ...]; weight
// [C] may be nil.
func (c *Ctx) CrossEntropy(logits, target, weight *Tensor, r Reduction, ignoreIndex int64,
	smoothing float64) *Tensor {
	return c.begin(opCrossEntropy).t(logits).t(target).t(weight).i(int64(r)).i(ignoreIndex).f(smoothing).one()
}

// MSE is aten::mse_loss.
func (c *Ctx) MSE(a, target *Tensor, r Reduction) *Tensor {
	return c.begin(opMSE).t(a).t(target).i(int64(r)).one()
}

// L1 is aten::l1_loss.
func (c *Ctx) L1(a, target *Tensor, r Reduction) *Tensor {
	return c.begin(opL1).t(a).t(target).i(int64(r)).one()
}

// Huber is aten::huber_loss.
func (c *Ctx) Huber(a, target *Tensor, r Reduction, delta float64) *Tensor {
	return c.begin(opHuber).t(a).t(target).i(int64(r)).f(delta).one()
}

// NLL is aten::nll_loss_nd of log-probabilities [N, C, ...] and int64 classes [N, ...]; weight [C]
// may be nil.
func (c *Ctx) NLL(a, target, weight *Tensor, r Reduction, ignoreIndex int64) *Tensor {
	return c.begin(opNLL).t(a).t(target).t(weight).i(int64(r)).i(ignoreIndex).one()
}

// BCEWithLogits is aten::binary_cross_entropy_with_logits; weight and posWeight may be nil.
func (c *Ctx) BCEWithLogits(logits, target, weight, posWeight *Tensor, r Reduction) *Tensor {
	return c.begin(opBCEWithLogits).t(logits).t(target).t(weight).t(posWeight).i(int64(r)).one()
}
