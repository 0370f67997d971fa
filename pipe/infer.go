package pipe

import (
	"context"

	"penstock/schedule"
	"penstock/torch"
)

// Inference is the result of Infer.
type Inference struct {
	// Output is the model's output for the whole batch, on the last device. The caller frees it.
	Output       []*torch.Tensor
	MicroBatches int
	Timeline     *schedule.Timeline // if Config.Record is set
}

// Infer runs the model forward, pipelined and without gradients, in evaluation mode unless
// b.Training is set. It blocks until every worker is done. Each activation is freed at its last
// use, and nothing is recomputed. A batch may have any number of rows, with b.Training at least
// one. On failure see Step.
func (p *Pipe) Infer(ctx context.Context, b Batch) (Inference, error) {
	leave, err := p.enter("Infer")
	if err != nil {
		return Inference{}, err
	}
	defer leave()
	r, err := p.minibatch(ctx, b, b.Training, false)
	if err != nil {
		return Inference{}, err
	}
	defer r.free()
	out, timeline, err := r.run(ctx)
	return Inference{out, len(r.parts), timeline}, err
}
