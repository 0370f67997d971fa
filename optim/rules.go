package optim

import (
	"cmp"
	"math"

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

// Adam returns torch.optim.Adam (Kingma and Ba 2015, algorithm 1). t counts the parameter's updates:
//
//	g = g + WeightDecay p
//	m = Betas[0] m + (1 - Betas[0]) g
//	v = Betas[1] v + (1 - Betas[1]) g²
//	p = p - LR / (1 - Betas[0]^t)  m / (sqrt(v) / sqrt(1 - Betas[1]^t) + Eps)
//
// It keeps m as "exp_avg" and v as "exp_avg_sq".
func Adam(o Config) (Optimizer, error) { return newAdam("adam", o, false) }

// AdamW returns torch.optim.AdamW (Loshchilov and Hutter 2019, "Decoupled weight decay regularization"):
// Adam with this decay before the update, instead of the penalty in the gradient:
//
//	p = (1 - LR WeightDecay) p
func AdamW(o Config) (Optimizer, error) { return newAdam("adamw", o, true) }

func newAdam(name string, o Config, decoupled bool) (Optimizer, error) {
	if err := o.check(name, "Betas[0]", "Betas[1]", "Eps"); err != nil {
		return nil, err
	}
	if o.Betas == [2]float64{} {
		o.Betas = [2]float64{0.9, 0.999}
	}
	o.Eps = cmp.Or(o.Eps, 1e-8)
	return newOptimizer(o, cmp.Or(o.LR, 1e-3), func(o Config) rule { return &adam{o, decoupled} }), nil
}

type adam struct {
	Config
	decoupled bool
}

func (r *adam) slots() []string { return []string{"exp_avg", "exp_avg_sq"} }

// temporaries returns 1: the penalised gradient, then the denominator in its place.
func (r *adam) temporaries() int { return 1 }

func (r *adam) update(c *torch.Ctx, p, g *torch.Tensor, slots []*torch.Tensor, step int64,
	scratch []*torch.Tensor, lr float64) {
	beta1, beta2 := r.Betas[0], r.Betas[1]
	mean, square := slots[0], slots[1]
	switch {
	case r.WeightDecay == 0:
	case r.decoupled:
		c.MulScalar_(p, 1-lr*r.WeightDecay)
	default:
		g = addOut(c, scratch[0], g, p, r.WeightDecay)
	}
	c.Add_(c.MulScalar_(mean, beta1), g, 1-beta1)
	c.Op("aten::addcmul_", c.MulScalar_(square, beta2), g, g, 1-beta2)

	denominator := c.Op("aten::sqrt.out", square, scratch[0])
	c.Op("aten::div_.Scalar", denominator, math.Sqrt(1-math.Pow(beta2, float64(step))))
	c.AddScalar_(denominator, r.Eps)
	c.Op("aten::addcdiv_", p, mean, denominator, -lr/(1-math.Pow(beta1, float64(step))))
}

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
