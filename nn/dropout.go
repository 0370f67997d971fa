package nn

import "penstock.example/torch"

// Dropout, in training, zeroes each element with probability p and scales the others by 1/(1-p)
// (Srivastava et al. 2014). In evaluation, or with p = 0, it returns its input itself. What it
// drops depends on the run's seed, the micro-batch and the layer's full name, so a recomputation
// drops the same.
type Dropout struct {
	Base
	p float64
}

// NewDropout makes a Dropout. PyTorch's default for p is 0.5.
func NewDropout(p float64) *Dropout {
	requireProbability("Dropout", "p", p)
	return &Dropout{p: p}
}

// Forward is torch.Ctx.Dropout.
func (l *Dropout) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	if !c.Training {
		return x
	}
	return c.Dropout(x, l.p)
}
