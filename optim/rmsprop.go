package optim

import (
	"cmp"

	"penstock.example/torch"
)

// RMSprop returns torch.optim.RMSprop (Hinton's lecture 6e; centered: Graves 2013, "Generating sequences
// with recurrent neural networks", eq. 38-45):
//
//	g = g + WeightDecay p
//	v = Alpha v + (1 - Alpha) g²
//	a = Alpha a + (1 - Alpha) g               with Centered
//	d = sqrt(v) + Eps,  sqrt(v - a²) + Eps with Centered
//	b = Momentum b + g / d,  p = p - LR b     with momentum
//	p = p - LR g / d                          without
//
// It keeps v as "square_avg", a as "grad_avg" and b as "momentum".
func RMSprop(o Config) (Optimizer, error) {
	if err := o.check("rmsprop", "Momentum", "Eps", "Alpha", "Centered"); err != nil {
		return nil, err
	}
	o.Alpha, o.Eps = cmp.Or(o.Alpha, 0.99), cmp.Or(o.Eps, 1e-8)
	return newOptimizer(o, cmp.Or(o.LR, 1e-2), func(o Config) rule { return &rmsprop{o} }), nil
}

type rmsprop struct{ Config }

func (r *rmsprop) slots() []string {
	s := []string{"square_avg"}
	if r.Centered {
		s = append(s, "grad_avg")
	}
	if r.Momentum != 0 {
		s = append(s, "momentum")
	}
	return s
}

// temporaries counts the denominator, and with WeightDecay the penalised gradient.
func (r *rmsprop) temporaries() int {
	if r.WeightDecay != 0 {
		return 2
	}
	return 1
}

func (r *rmsprop) update(c *torch.Ctx, p, g *torch.Tensor, slots []*torch.Tensor, step int64,
	scratch []*torch.Tensor, lr float64) {
	if r.WeightDecay != 0 {
		g = addOut(c, scratch[1], g, p, r.WeightDecay)
	}
	square := slots[0]
	c.Op("aten::addcmul_", c.MulScalar_(square, r.Alpha), g, g, 1-r.Alpha)

	denominator := scratch[0]
	if r.Centered {
		mean := slots[1]
		c.Add_(c.MulScalar_(mean, r.Alpha), g, 1-r.Alpha)
		c.Op("aten::sqrt_", c.Op("aten::addcmul.out", square, mean, mean, -1., denominator))
	} else {
		c.Op("aten::sqrt.out", square, denominator)
	}
	c.AddScalar_(denominator, r.Eps)

	if r.Momentum != 0 {
		b := slots[len(slots)-1]
		c.Op("aten::addcdiv_", c.MulScalar_(b, r.Momentum), g, denominator, 1)
		c.Add_(p, b, -lr)
	} else {
		c.Op("aten::addcdiv_", p, g, denominator, -lr)
	}
}
