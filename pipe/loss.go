package pipe

import (
	"slices"

	"penstock/torch"
)

// weight makes micro-batch losses add up to the loss of the whole batch: a mean counts by its rows,
// a sum fully.
func (r *minibatch) weight(microBatch int) float64 {
	if r.loss.Reduction() == torch.ReduceSum || r.total == 0 {
		return 1
	}
	return float64(r.parts[microBatch].length) / float64(r.total)
}

// gradOfLoss is a micro-batch's weight as the gradient of its loss. Micro-batches of a mini-batch
// have at most two weights, one after the other. A plan has it made afresh for each.
func (r *minibatch) gradOfLoss(c *torch.Ctx, weight float64) *torch.Tensor {
	if r.p.optimal() {
		return c.Fill_(c.Empty(r.lossType), weight)
	}
	if r.lossGrad == nil || r.lossWeight != weight {
		r.lossGrad.Free()
		r.lossGrad, r.lossWeight = c.Keep(c.Fill_(c.Empty(r.lossType), weight)), weight
	}
	return c.Share(r.lossGrad)
}

// readLoss reads a micro-batch's loss, which lies in the cell with its graph, or was given without
// one.
func (r *minibatch) readLoss(c *torch.Ctx, cell *cell, given []*torch.Tensor) {
	loss := slices.Concat(cell.out, given)[0]
	r.lossType, cell.loss = loss.DType(), number(c, loss)
}

// number reads a loss.
func number(c *torch.Ctx, t *torch.Tensor) float64 {
	switch t.DType() {
	case torch.Float64:
		return torch.Item[float64](t)
	case torch.Float32:
		return float64(torch.Item[float32](t))
	}
	return torch.Item[float64](c.To(c.Detach(t), torch.Float64))
}
