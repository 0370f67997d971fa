package pipe

import (
	"context"
	"fmt"
	"slices"

	"penstock/internal/arg"
	"penstock/nn"
	"penstock/torch"
)

// Model is the model, whole.
func (p *Pipe) Model() *nn.Sequential { return p.model }

// Len is the number of the model's flattened layers, which Config.Balance counts.
func (p *Pipe) Len() int { return len(p.layers) }

// Layers lists the flattened layers in order, over all stages, with their names in the model. What
// is added to the model after New is not part of the pipe.
func (p *Pipe) Layers() []nn.NamedLayer { return slices.Clone(p.layers) }

// Layer is a flattened layer by its index, from 0; negative ones count from the end.
func (p *Pipe) Layer(i int) (nn.NamedLayer, error) {
	layers := p.layers
	if i < -len(layers) || i >= len(layers) {
		return nn.NamedLayer{}, fmt.Errorf("pipe: there is no layer %d among %d; want %d to %d", i, len(layers),
			-len(layers), len(layers)-1)
	}
	return layers[(i+len(layers))%len(layers)], nil
}

// Convert gives every floating-point parameter and buffer another element type, each on its stage's
// device. Gradients are dropped. Call it while no run is going on.
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
	// Also when that failed, or ctx has ended by now: replicas are to be like their parameters,
	// which are converted or not.
	if replicas := p.OnStages(context.WithoutCancel(ctx), p.replicate); err == nil {
		err = replicas
	}
	return err
}
