package train

import (
	"context"
	"fmt"

	"penstock/nn"
	"penstock/optim"
	"penstock/torch"
)

// update clips the gradients and steps the optimizer, each stage on its own worker. It returns the norm before clipping, or 0 if gradients are not clipped.
// The norm is that of all stages together, so clipping waits for all of them once.
func (l *Loop) update(ctx context.Context) (norm float64, err error) {
	stages := l.Pipe.Stages()
	params := make([][]nn.NamedParam, len(stages))
	for i, s := range stages {
		params[i] = s.Params()
	}
	factor := 1.0
	if l.ClipNorm > 0 {
		norms := make([][]optim.NamedNorm, len(stages))
		err := l.Pipe.OnStages(ctx, func(stage int, c *torch.Ctx) error {
			norms[stage] = optim.SquaredNorms(c, params[stage])
			return nil
		})
		if err != nil {
			return 0, fmt.Errorf("measuring the gradients: %w", err)
		}
		norm = optim.GlobalNorm(norms...)
		if factor, err = optim.ClipFactor(norm, l.ClipNorm); err != nil {
			return norm, err
		}
	}
	err = l.Pipe.OnStages(ctx, func(stage int, c *torch.Ctx) error {
		optim.Scale(c, params[stage], factor)
		l.Optimizer.Step(c, params[stage])
		return nil
	})
	if err != nil {
		return norm, fmt.Errorf("updating the parameters: %w", err)
	}
	return norm, nil
}
