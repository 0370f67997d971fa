package nn

import (
	"slices"

	"penstock.example/internal/engine"
	"penstock.example/torch"
)

// ClassLoss compares scores of classes, [N, C] or [N, C, ...], with int64 classes, [N] or [N, ...].
//
// The mean is over the targets that are not ignored, each weighed by its class. With IgnoreIndex or
// Weight the means of micro-batches, weighed by rows, are therefore not the mean of the whole
// batch. The sum is the same however a batch is split.
type ClassLoss struct {
	reduction
	logs      bool // the scores are logarithms of probabilities
	smoothing float64
	ignored   int64
	weight    []float32
}

// CrossEntropy is the mean of -log softmax(output)[target], without smoothing and weights, over the
// targets that are not -100. Methods give changed copies.
func CrossEntropy() ClassLoss { return ClassLoss{ignored: -100} }

// NLL is the mean of -output[target], of the logarithms of probabilities, such as LogSoftmax(1) gives. All
// else is as for CrossEntropy, but it has no LabelSmoothing.
func NLL() ClassLoss { return ClassLoss{ignored: -100, logs: true} }

// Sum adds up instead of averaging.
func (l ClassLoss) Sum() ClassLoss { l.reduction = summed; return l }

// LabelSmoothing spreads a share of the target, from 0 to 1, over all classes (Szegedy et al. 2016,
// section 7).
func (l ClassLoss) LabelSmoothing(share float64) ClassLoss {
	require(!l.logs, "NLL has no LabelSmoothing; CrossEntropy has")
	l.smoothing = share
	return l
}

// IgnoreIndex leaves out targets of this class.
func (l ClassLoss) IgnoreIndex(class int64) ClassLoss { l.ignored = class; return l }

// Weight weighs the targets by their class: one number for each class.
func (l ClassLoss) Weight(classes []float32) ClassLoss {
	l.weight = slices.Clone(classes)
	return l
}

// Forward is aten::cross_entropy_loss or aten::nll_loss_nd, on CUDA of rows [M, C].
func (l ClassLoss) Forward(c *Ctx, output, target *torch.Tensor) *torch.Tensor {
	l.requireRows("a loss of classes", output, target)
	mark := c.Mark()
	rows, classes := classRows(c, output, target)
	weight := weights(c, l.weight)
	args := []any{rows, classes, weight, l.Reduction(), l.ignored}
	op := "aten::nll_loss_nd"
	if !l.logs {
		op, args = "aten::cross_entropy_loss", append(args, l.smoothing)
	}
	loss := c.Op(op, args...)
	c.Release(mark, loss)
	return loss
}

// weights copies v to where the loss is computed, so that a loss belongs to no device; nil stays
// nil. The host does not wait for the copy.
func weights(c *Ctx, v []float32) *torch.Tensor {
	if v == nil {
		return nil
	}
	return engine.FromPinned(c.Ctx, v)
}
