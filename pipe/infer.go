package pipe

import (
	"context"
	"fmt"

	"penstock/schedule"
	"penstock/torch"
)

// InferConfig says how Infer runs. The zero value is evaluation mode.
type InferConfig struct {
	// Training drops what dropout drops and normalises by the micro-batch, and running statistics move, as in a training step. Nothing is kept for a backward all the same.
	Training bool
}

// Inference is what Infer gives.
type Inference struct {
	Outputs      []*torch.Tensor // the tuple that the model gives, of the whole batch, on the last device; the caller's to Free
	MicroBatches int
	Timeline     *schedule.Timeline // if Config.Record is set
}

// Infer runs the model forward, pipelined, without gradients and without keeping anything: each activation is freed at its last use. Any number of rows will do, none included unless InferConfig.Training is set. A micro-batch is not
// checkpointed. On failure see Step.
func (p *Pipe) Infer(ctx context.Context, b Batch, o InferConfig) (Inference, error) {
	return p.infer(ctx, "Infer", b, o)
}

func (p *Pipe) infer(ctx context.Context, call string, b Batch, o InferConfig) (Inference, error) {
	leave, err := p.enter(call)
	if err != nil {
		return Inference{}, err
	}
	defer leave()
	r, err := p.minibatch(ctx, b, o.Training, false)
	if err != nil {
		return Inference{}, err
	}
	defer r.free()
	out, timeline, err := r.run(ctx)
	return Inference{out, len(r.parts), timeline}, err
}

// Eval is Infer in evaluation mode for a model of one tensor to one tensor. The result is the caller's to Free.
func (p *Pipe) Eval(ctx context.Context, x *torch.Tensor) (*torch.Tensor, error) {
	if x == nil {
		return nil, errNoInput
	}
	result, err := p.infer(ctx, "Eval", Batch{Input: x}, InferConfig{})
	switch {
	case err != nil:
		return nil, err
	case len(result.Outputs) != 1:
		torch.FreeAll(result.Outputs)
		return nil, fmt.Errorf("pipe: the model gives a tuple of %d; use Infer", len(result.Outputs))
	}
	return result.Outputs[0], nil
}
