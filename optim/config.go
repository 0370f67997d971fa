package optim

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"penstock.example/internal/arg"
	"penstock.example/nn"
)

// ConfigError is a setting that is refused.
type ConfigError = arg.ConfigError

// Config holds the hyperparameters of all optimizers, by PyTorch's names. Setting one that the
// optimizer does not have is an error, as is a value that makes no sense.
type Config struct {
	// LR is the learning rate; 0 stands for 0.001, and for 0.01 with RMSprop. SetLR takes 0 as it
	// is.
	LR float64
	// WeightDecay is the L2 penalty, added to the gradient; with AdamW the part of the weights,
	// times LR, that is taken away before the update. 0 is none, also with AdamW, where PyTorch
	// would take 0.01.
	WeightDecay float64
	// Momentum of SGD and RMSprop; 0 is none and needs no memory.
	Momentum float64
	// Dampening of the gradient in SGD's momentum; 0 is none.
	Dampening float64
	// Nesterov momentum, SGD only. It needs momentum and no dampening.
	Nesterov bool
	// Betas are Adam's and AdamW's averaging coefficients; both 0 stand for 0.9 and 0.999.
	Betas [2]float64
	// Eps is added to the denominator of Adam, AdamW and RMSprop; 0 stands for 1e-8.
	Eps float64
	// Alpha is RMSprop's averaging coefficient; 0 stands for 0.99.
	Alpha float64
	// Centered makes RMSprop divide by an estimate of the variance.
	Centered bool
	// Groups are parameters with settings of their own. A parameter is in the first that has its name.
	Groups []Group
}

// check returns an error for the first setting that is invalid, or that the optimizer does not
// take. Every optimizer takes LR and WeightDecay.
func (o Config) check(optimizer string, takes ...string) (err error) {
	check := func(name string, value any, set, valid bool, want string) {
		refused := &ConfigError{Of: "optim: " + optimizer, Field: name, Value: value, Remedy: "want " + want}
		if set && !slices.Contains(takes, name) {
			refused.Problem, refused.Remedy = "it is no setting of "+optimizer, "want it left out"
		} else if valid {
			return
		}
		if err == nil {
			err = refused
		}
	}
	number := func(name string, v float64, valid bool, want string) { check(name, v, v != 0, valid, want) }
	size := func(name string, v float64) { number(name, v, isSize(v), "a finite number that is not negative") }
	part := func(name string, v float64) {
		number(name, v, v >= 0 && v < 1, "a number from 0 to 1, 1 excluded")
	}
	takes = append(takes, "LR", "WeightDecay")
	size("LR", o.LR)
	size("WeightDecay", o.WeightDecay)
	size("Momentum", o.Momentum)
	number("Dampening", o.Dampening, isSize(math.Abs(o.Dampening)), "a finite number")
	check("Nesterov", o.Nesterov, o.Nesterov, !o.Nesterov || o.Momentum > 0 && o.Dampening == 0,
		fmt.Sprintf("Momentum above 0 and Dampening 0 with it, not %v and %v", o.Momentum, o.Dampening))
	part("Betas[0]", o.Betas[0])
	part("Betas[1]", o.Betas[1])
	size("Eps", o.Eps)
	part("Alpha", o.Alpha)
	check("Centered", o.Centered, o.Centered, true, "")
	for _, g := range o.Groups {
		check("Groups", g.Params, false, g.Params != "" && isSize(g.Scale) &&
			(g.WeightDecay == nil || isSize(*g.WeightDecay)), "a pattern of names, such as *.bias, with a "+
			"Scale and a WeightDecay that are finite and not negative")
	}
	return err
}

// isSize is false for NaN.
func isSize(v float64) bool { return v >= 0 && !math.IsInf(v, 0) }

// Group is parameters that are updated with another rate, or another weight decay, such as the body of a
// network whose head is new, or biases without decay. As a parameter group of torch.optim it follows
// the schedule of the learning rate.
type Group struct {
	// Params is the pattern of the parameters' full names (nn.Match).
	Params string
	// Scale is what the learning rate is multiplied by; 0 stands for 1. For none at all see nn.Freeze.
	Scale float64
	// WeightDecay replaces the Config's; nil leaves it.
	WeightDecay *float64
}

// groupRule is the rule for the parameters of a group.
type groupRule struct {
	params string
	scale  float64
	rule   rule
}

func grouped(o Config, make func(Config) rule) (all []groupRule) {
	for _, g := range o.Groups {
		own := o
		if g.WeightDecay != nil {
			own.WeightDecay = *g.WeightDecay
		}
		all = append(all, groupRule{g.Params, cmp.Or(g.Scale, 1), make(own)})
	}
	return all
}

// ruleOf returns the rule for a parameter, which is its first group's, and the factor of the rate. All rules
// keep the same slots.
func (o *optimizer) ruleOf(name string) (rule, float64) {
	for _, g := range o.groups {
		if nn.Match(g.params, name) {
			return g.rule, g.scale
		}
	}
	return o.rule, 1
}

// Slots is how many tensors of a parameter's size an optimizer by this name keeps for each
// parameter: none for plain SGD, one with momentum, two for Adam. Its errors are those of New.
func Slots(name string, config Config) (int, error) {
	o, err := New(name, config)
	if err != nil {
		return 0, err
	}
	defer o.Close()
	return len(o.(*optimizer).rule.slots()), nil
}
