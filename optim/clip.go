package optim

import (
	"penstock.example/internal/gradnorm"
	"penstock.example/nn"
	"penstock.example/torch"
)

// ErrNotFinite is the error of clipping gradients with infinite or NaN elements. No factor mends
// them. Nothing was scaled; the caller may skip the step or stop.
var ErrNotFinite = gradnorm.ErrNotFinite

// Clip clips the gradients of a model in one piece by their norm, as torch.nn.utils.clip_grad_norm_, and
// returns the norm before.
func Clip(c *torch.Ctx, params []nn.NamedParam, maxNorm float64) (norm float64, err error) {
	norm = gradnorm.Global(gradnorm.Squared(c, params))
	factor, err := gradnorm.ClipFactor(norm, maxNorm)
	if err == nil {
		gradnorm.Scale(c, params, factor)
	}
	return norm, err
}
