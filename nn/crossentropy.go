package nn

import (
	"slices"

	"penstock.example/torch"
)

// CrossEntropyLoss is -log softmax(output)[target]: logits [N, C] or [N, C, ...] and int64 classes
// [N] or [N, ...].
//
// The mean is over the targets that are not ignored, each weighed by its class. With IgnoreIndex or
// Weight the means of micro-batches, weighed by rows, are therefore not the mean of the whole
// batch. The sum is the same however a batch is split.
type CrossEntropyLoss struct {
	reduction
	smoothing float64
	ignored   int64
	weight    []float32
}

// CrossEntropy is the mean, without smoothing and weights, over the targets that are not -100.
// Methods give changed copies.
func CrossEntropy() CrossEntropyLoss { return CrossEntropyLoss{ignored: -100} }

// Sum adds up instead of averaging.
func (l CrossEntropyLoss) Sum() CrossEntropyLoss { l.reduction = summed; return l }

// LabelSmoothing spreads a share of the target, from 0 to 1, over all classes (Szegedy et al. 2016,
// section 7).
func (l CrossEntropyLoss) LabelSmoothing(share float64) CrossEntropyLoss {
	requireProbability("CrossEntropy", "LabelSmoothing", share)
	l.smoothing = share
	return l
}

// IgnoreIndex leaves out targets of this class.
func (l CrossEntropyLoss) IgnoreIndex(class int64) CrossEntropyLoss { l.ignored = class; return l }

// Weight weighs the targets by their class: one number for each class.
func (l CrossEntropyLoss) Weight(classes []float32) CrossEntropyLoss {
	l.weight = slices.Clone(classes)
	return l
}

// Forward is aten::cross_entropy_loss, on CUDA of rows [M, C].
func (l CrossEntropyLoss) Forward(c *Ctx, output, target *torch.Tensor) *torch.Tensor {
	requireRows("aten::cross_entropy_loss", l, output, target)
	mark := c.Mark()
	rows, classes := classRows(c, output, target)
	loss := c.CrossEntropy(rows, classes, weights(c, l.weight), l.Reduction(), l.ignored, l.smoothing)
	c.Release(mark, loss)
	return loss
}

// BCEWithLogitsLoss is the binary cross-entropy of sigmoid(output) and a target from 0 to 1,
// computed without overflow, for tensors of one shape.
type BCEWithLogitsLoss struct {
	reduction
	posWeight []float32
}

// BCEWithLogits is the mean over all elements. Methods give changed copies.
func BCEWithLogits() BCEWithLogitsLoss { return BCEWithLogitsLoss{} }

// Sum adds up instead of averaging.
func (l BCEWithLogitsLoss) Sum() BCEWithLogitsLoss { l.reduction = summed; return l }

// PosWeight weighs the positive answer: one number for each place of the last dimension.
func (l BCEWithLogitsLoss) PosWeight(weights []float32) BCEWithLogitsLoss {
	l.posWeight = slices.Clone(weights)
	return l
}

// Forward is aten::binary_cross_entropy_with_logits.
func (l BCEWithLogitsLoss) Forward(c *Ctx, output, target *torch.Tensor) *torch.Tensor {
	requireOneShape("aten::binary_cross_entropy_with_logits", output, target)
	requireRows("aten::binary_cross_entropy_with_logits", l, output, target)
	return c.BCEWithLogits(output, target, nil, weights(c, l.posWeight), l.Reduction())
}

// weights copies v to where the loss is computed, so that a loss belongs to no device; nil stays
// nil. The host does not wait for the copy.
func weights(c *Ctx, v []float32) *torch.Tensor {
	if v == nil {
		return nil
	}
	return torch.FromPinned(c.Ctx, v)
}

// NLLLoss is -output[target], the negative log likelihood: log-probabilities [N, C] or [N, C, ...],
// such as LogSoftmax(1) gives, and int64 classes [N] or [N, ...].
//
// The mean is over the targets that are not ignored, each weighed by its class, as that of
// CrossEntropyLoss, which says what that means for micro-batches.
type NLLLoss struct {
	reduction
	ignored int64
	weight  []float32
}

// NLL is the mean, without weights, over the targets that are not -100. Methods give changed copies.
func NLL() NLLLoss { return NLLLoss{ignored: -100} }

// Sum adds up instead of averaging.
func (l NLLLoss) Sum() NLLLoss { l.reduction = summed; return l }

// IgnoreIndex leaves out targets of this class.
func (l NLLLoss) IgnoreIndex(class int64) NLLLoss { l.ignored = class; return l }

// Weight weighs the targets by their class: one number for each class.
func (l NLLLoss) Weight(classes []float32) NLLLoss {
	l.weight = slices.Clone(classes)
	return l
}

// Forward is aten::nll_loss_nd, on CUDA of rows [M, C].
func (l NLLLoss) Forward(c *Ctx, output, target *torch.Tensor) *torch.Tensor {
	requireRows("aten::nll_loss_nd", l, output, target)
	mark := c.Mark()
	rows, classes := classRows(c, output, target)
	loss := c.NLL(rows, classes, weights(c, l.weight), l.Reduction(), l.ignored)
	c.Release(mark, loss)
	return loss
}
