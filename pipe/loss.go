package pipe

import (
	"cmp"

	"penstock.example/torch"
)

// weight is the factor of a micro-batch, with which the losses add up to the loss of the whole
// batch, or of all batches of the update. Of a mean it is the share of the rows, of a sum 1.
func (r *run) weight(microBatch int) float64 {
	if r.loss.Reduction() == torch.ReduceSum || r.total == 0 {
		return 1
	}
	return float64(r.parts[microBatch].length) / float64(cmp.Or(r.batch.TotalRows, r.total))
}

// readLoss reads a micro-batch's loss. It is in the state with its graph, or given without one.
func (r *run) readLoss(c *torch.Ctx, state *microBatch, given []*torch.Tensor) {
	if len(state.out) > 0 {
		given = state.out
	}
	loss := given[0]
	if r.lossType = loss.DType(); c.Device().Kind == torch.KindCPU {
		state.loss = number(c, loss, r.lossType)
	} else {
		state.reading = c.Keep(c.ToHost(loss))
	}
}

// lossOf is the loss of a micro-batch, after the run.
func (r *run) lossOf(microBatch int) float64 {
	state := &r.states[len(r.p.stages)-1][microBatch]
	if state.reading != nil {
		c := torch.NewCtx(torch.Options{})
		defer c.Close()
		state.loss = number(c, state.reading, state.reading.DType())
		state.reading.Free()
		state.reading = nil
	}
	return state.loss
}

// number reads a loss of a floating-point type.
func number(c *torch.Ctx, t *torch.Tensor, of torch.DType) float64 {
	switch of {
	case torch.Float64:
		return torch.Item[float64](t)
	case torch.Float32:
		return float64(torch.Item[float32](t))
	}
	return torch.Item[float64](c.To(c.Detach(t), torch.Float64))
}
