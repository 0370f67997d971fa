package pipe

import (
	"context"
	"fmt"
	"slices"

	"penstock/internal/arg"
	"penstock/nn"
	"penstock/torch"
)

// Model is the model that was cut, in whole.
func (p *Pipe) Model() *nn.Sequential { return p.model }

// Len is the number of the model's flattened layers, which Config.Balance counts.
func (p *Pipe) Len() int { return len(p.layers) }

// Layers lists the flattened layers of all stages in order, with their names in the model. A layer
// that is added to the model after New is not part of the pipe.
func (p *Pipe) Layers() []nn.NamedLayer { return slices.Clone(p.layers) }

// Layer returns the flattened layer with index i, from 0. A negative index counts from the end.
func (p *Pipe) Layer(i int) (nn.NamedLayer, error) {
	layers := p.layers
	if i < -len(layers) || i >= len(layers) {
		return nn.NamedLayer{}, fmt.Errorf("pipe: there is no layer %d among %d; want %d to %d", i, len(layers),
			-len(layers), len(layers)-1)
	}
	return layers[(i+len(layers))%len(layers)], nil
}

// Convert converts every floating-point parameter and buffer to another element type, each on the
// device of its stage, and drops the gradients. No run may go on meanwhile.
func (p *Pipe) Convert(ctx context.Context, dtype torch.DType) error {
	if err := arg.Context(ctx, "pipe"); err != nil {
		return err
	}
	if !dtype.IsFloat() {
		return fmt.Errorf("pipe: a model cannot be converted to %v; want a floating-point type", dtype)
	}
	leave, err := p.enter("Convert")
	if err != nil {
		return err
	}
	defer leave()
	err = p.OnStages(ctx, func(stage int, c *torch.Ctx) error {
		nn.Convert(c, p.stages[stage].State(), dtype)
		return nil
	})
	// After a failure, or when ctx has ended, replicas must equal their parameters too.
	if replicas := p.OnStages(context.WithoutCancel(ctx), p.replicate); err == nil {
		err = replicas
	}
	return err
}
