package optim

import (
	"penstock.example/internal/gradnorm"
	"penstock.example/nn"
	"penstock.example/torch"
)

// ErrNotFinite is the error of clipping gradients with infinite or NaN elements. Gradients are then
// unchanged.
var ErrNotFinite = gradnorm.ErrNotFinite

// Clip clips the gradients of a model on one device by their global norm, as
// torch.nn.utils.clip_grad_norm_ does. It returns the norm before clipping.
func Clip(c *torch.Ctx, params []nn.NamedParam, maxNorm float64) (norm float64, err error) {
	norm = gradnorm.Global(gradnorm.Squared(c, params))
	factor, err := gradnorm.ClipFactor(norm, maxNorm)
	if err == nil {
		gradnorm.Scale(c, params, factor)
	}
	return norm, err
}
