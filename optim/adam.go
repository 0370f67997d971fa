package optim

import (
	"cmp"
	"math"

	"penstock.example/torch"
)

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
