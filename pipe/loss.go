package pipe

import (
	"slices"

	"penstock/torch"
)

// weight is the factor of a micro-batch, with which the losses add up to the loss of the whole
// batch. Of a mean it is the share of the rows, of a sum 1.
func (r *minibatch) weight(microBatch int) float64 {
	if r.loss.Reduction() == torch.ReduceSum || r.total == 0 {
		return 1
	}
	return float64(r.parts[microBatch].length) / float64(r.total)
}

// gradOfLoss is the gradient of a micro-batch's loss: its weight. The micro-batches of a mini-batch
// have at most two weights, so a tensor is shared by those of the same weight. With the policy
// Optimal each gets a tensor of its own, because the plan counts it so.
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

// readLoss reads a micro-batch's loss. It is in the state with its graph, or given without one.
func (r *minibatch) readLoss(c *torch.Ctx, state *microBatchState, given []*torch.Tensor) {
	loss := slices.Concat(state.out, given)[0]
	r.lossType, state.loss = loss.DType(), number(c, loss)
}

// number reads a loss of any floating-point type.
func number(c *torch.Ctx, t *torch.Tensor) float64 {
	switch t.DType() {
	case torch.Float64:
		return torch.Item[float64](t)
	case torch.Float32:
		return float64(torch.Item[float32](t))
	}
	return torch.Item[float64](c.To(c.Detach(t), torch.Float64))
}
