package optim

import (
	"cmp"

	"penstock.example/torch"
)

// SGD returns torch.optim.SGD:
//
//	d = g + WeightDecay p
//	b = Momentum b + (1 - Dampening) d        at the first update b = d
//	d = d + Momentum b  with Nesterov,  b  without
//	p = p - LR d
//
// With Momentum it keeps b as "momentum" (Sutskever et al. 2013, "On the importance of initialization and
// momentum in deep learning", with the rate outside of the momentum).
func SGD(o Config) (Optimizer, error) {
	if err := o.check("sgd", "Momentum", "Dampening", "Nesterov"); err != nil {
		return nil, err
	}
	return newOptimizer(o, cmp.Or(o.LR, 1e-3), func(o Config) rule { return &sgd{o} }), nil
}

type sgd struct{ Config }

func (r *sgd) slots() []string {
	if r.Momentum == 0 {
		return nil
	}
	return []string{"momentum"}
}

// temporaries returns 1 if the direction d is neither the gradient nor the momentum.
func (r *sgd) temporaries() int {
	if r.WeightDecay == 0 && !r.Nesterov {
		return 0
	}
	return 1
}

func (r *sgd) update(c *torch.Ctx, p, g *torch.Tensor, slots []*torch.Tensor, step int64,
	scratch []*torch.Tensor, lr float64) {
	d := g
	if r.WeightDecay != 0 {
		d = addOut(c, scratch[0], g, p, r.WeightDecay)
	}
	if r.Momentum != 0 {
		b := slots[0]
		if step == 1 {
			c.Copy_(b, d)
		} else {
			c.Add_(c.MulScalar_(b, r.Momentum), d, 1-r.Dampening)
		}
		if r.Nesterov {
			d = addOut(c, scratch[0], d, b, r.Momentum)
		} else {
			d = b
		}
	}
	c.Add_(p, d, -lr)
}
