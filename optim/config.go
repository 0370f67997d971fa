package optim

import (
	"fmt"
	"math"
	"slices"

	"penstock.example/internal/arg"
	"penstock.example/internal/gradnorm"
	"penstock.example/nn"
)

// ConfigError is returned for an invalid setting.
type ConfigError = arg.ConfigError

// ErrNotFinite is the error of clipping infinite or NaN gradients. They are then unchanged.
var ErrNotFinite = gradnorm.ErrNotFinite

// Config holds the hyperparameters of all optimizers, with PyTorch's names. It is an error to set one
// that the optimizer does not have.
type Config struct {
	LR          float64    // learning rate; 0 means 0.001, or 0.01 for RMSprop
	WeightDecay float64    // L2 penalty in the gradient, or AdamW's decay; 0 is none, also for AdamW
	Momentum    float64    // of SGD and RMSprop; 0 is none
	Dampening   float64    // of the gradient in SGD's momentum; 0 is none
	Nesterov    bool       // of SGD with Momentum and without Dampening
	Betas       [2]float64 // averaging coefficients of Adam and AdamW; both 0 mean 0.9 and 0.999
	Eps         float64    // added to the denominator of Adam, AdamW and RMSprop; 0 means 1e-8
	Alpha       float64    // averaging coefficient of RMSprop; 0 means 0.99
	Centered    bool       // RMSprop divides by an estimate of the variance
	Groups      []Group    // a parameter belongs to the first group whose pattern its name matches
}

// check returns an error for the first setting that is invalid or not of the optimizer. takes names the
// optimizer's settings besides LR and WeightDecay.
func (o Config) check(optimizer string, takes ...string) (err error) {
	check := func(name string, value any, set, valid bool, want string) {
		refused := &ConfigError{Of: "optim: " + optimizer, Field: name, Value: value, Remedy: "want " + want}
		if set && !slices.Contains(takes, name) {
			refused.Problem, refused.Remedy = optimizer+" has no such setting", "want it left out"
		} else if valid {
			return
		}
		if err == nil {
			err = refused
		}
	}
	takes = append(takes, "LR", "WeightDecay")
	number := func(end float64, want string, names []string, values ...float64) {
		for i, v := range values {
			check(names[i], v, v != 0, v >= 0 && v < end, want)
		}
	}
	number(math.Inf(1), "a finite number that is not negative",
		[]string{"LR", "WeightDecay", "Momentum", "Eps"}, o.LR, o.WeightDecay, o.Momentum, o.Eps)
	number(1, "a number from 0 to 1, 1 excluded", []string{"Betas[0]", "Betas[1]", "Alpha"}, o.Betas[0],
		o.Betas[1], o.Alpha)
	check("Dampening", o.Dampening, o.Dampening != 0, isAmount(math.Abs(o.Dampening)), "a finite number")
	check("Nesterov", o.Nesterov, o.Nesterov, !o.Nesterov || o.Momentum > 0 && o.Dampening == 0,
		fmt.Sprintf("Momentum above 0 and Dampening 0 with it, not %v and %v", o.Momentum, o.Dampening))
	check("Centered", o.Centered, o.Centered, true, "")
	for _, g := range o.Groups {
		check("Groups", g.Params, false, g.Params != "" && isAmount(g.Scale) &&
			(g.WeightDecay == nil || isAmount(*g.WeightDecay)), "a pattern of names, such as *.bias, with a "+
			"Scale and a WeightDecay that are finite and not negative")
	}
	return err
}

// isAmount reports whether v is finite and not negative.
func isAmount(v float64) bool { return v >= 0 && !math.IsInf(v, 0) }

// Group gives some parameters another learning rate or weight decay, like a parameter group of
// torch.optim. Biases may have no decay, for example, and old layers below a new head a lower rate.
type Group struct {
	Params      string   // pattern of full names (nn.Match)
	Scale       float64  // factor of the learning rate; 0 means 1 (nn.Freeze stops updates)
	WeightDecay *float64 // nil means the Config's
}

type groupRule struct {
	params string
	scale  float64
	rule   rule
}

// ruleOf returns a parameter's rule and factor of the learning rate. All rules have the same slots.
func (o *optimizer) ruleOf(name string) (rule, float64) {
	for _, g := range o.groups {
		if nn.Match(g.params, name) {
			return g.rule, g.scale
		}
	}
	return o.rule, 1
}

// Slots returns the number of tensors that the named optimizer keeps for each parameter: 0 for plain SGD,
// 1 with momentum, 2 for Adam. Errors are New's.
func Slots(name string, config Config) (int, error) {
	o, err := New(name, config)
	if err != nil {
		return 0, err
	}
	return len(o.(*optimizer).rule.slots()), nil
}
