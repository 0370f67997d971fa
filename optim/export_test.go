package optim

import "penstock.example/torch"

var StepDecay, Cosine, Warmup = stepDecay, cosine, ramp

// Break makes an optimizer's updates panic half-way through the n-th parameter that is updated from
// now on, counted from 0.
func Break(o Optimizer, n int) {
	of := o.(*optimizer)
	of.rule = &broken{of.rule, n}
}

// Mend undoes Break.
func Mend(o Optimizer) { o.(*optimizer).rule = o.(*optimizer).rule.(*broken).rule }

type broken struct {
	rule
	left int
}

func (b *broken) update(c *torch.Ctx, p, g *torch.Tensor, slots []*torch.Tensor, step int64,
	scratch []*torch.Tensor, lr float64) {
	b.left--
	if b.left < 0 {
		c.AddScalar_(slots[0], 1)
		panic("broken")
	}
	b.rule.update(c, p, g, slots, step, scratch, lr)
}
