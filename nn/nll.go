package nn

import (
	"slices"

	"penstock.example/torch"
)

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

// Targets is the first class, everywhere.
func (l NLLLoss) Targets(c *torch.Ctx, outputs []*torch.Tensor) []*torch.Tensor {
	return firstClass(c, outputs[0])
}
