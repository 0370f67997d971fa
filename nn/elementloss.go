package nn

import (
	"slices"

	"penstock.example/torch"
)

// ElementLoss compares an output with a target element by element. Both have one shape: [N, 1] against
// [N], which libtorch would broadcast, is refused.
type ElementLoss struct {
	reduction
	op        string
	delta     float64
	posWeight []float32
}

// MSE is the mean of (output - target)^2 over all elements.
func MSE() ElementLoss { return ElementLoss{op: "aten::mse_loss"} }

// L1 is the mean of |output - target| over all elements.
func L1() ElementLoss { return ElementLoss{op: "aten::l1_loss"} }

// Huber is the mean over all elements of d^2 / 2 where d = |output - target| is at most delta, and
// delta (d - delta / 2) elsewhere (Huber 1964, "Robust Estimation of a Location Parameter"). PyTorch's
// default for delta is 1.
func Huber(delta float64) ElementLoss { return ElementLoss{op: "aten::huber_loss", delta: delta} }

// BCEWithLogits is the mean over all elements of the binary cross-entropy of sigmoid(output) and a target
// from 0 to 1, computed without overflow.
func BCEWithLogits() ElementLoss { return ElementLoss{op: "aten::binary_cross_entropy_with_logits"} }

// PosWeight weighs the positive answer of BCEWithLogits: one number for each place of the last dimension.
func (l ElementLoss) PosWeight(weights []float32) ElementLoss {
	l.posWeight = slices.Clone(weights)
	return l
}

// Sum is the loss that adds up instead of averaging.
func (l ElementLoss) Sum() ElementLoss { l.reduction = summed; return l }

// Forward is the operator of libtorch.
func (l ElementLoss) Forward(c *Ctx, output, target *torch.Tensor) *torch.Tensor {
	if !output.SameShape(target) {
		panic(&torch.Error{Op: l.op, Args: torch.Describe([]*torch.Tensor{output, target}),
			Message: "output and target must have one shape; reshape the target"})
	}
	l.requireRows(l.op, output, target)
	switch l.op {
	case "aten::huber_loss":
		return c.Op(l.op, output, target, l.Reduction(), l.delta)
	case "aten::binary_cross_entropy_with_logits":
		return c.Op(l.op, output, target, nil, weights(c, l.posWeight), l.Reduction())
	}
	return c.Op(l.op, output, target, l.Reduction())
}
