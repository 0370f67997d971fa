package optim

import (
	"fmt"
	"math"
	"slices"

	"penstock.example/internal/arg"
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
func (o Config) check(optimizer string, takes ...string) error {
	const size, part = "a finite number that is not negative", "a number from 0 to 1, 1 excluded"
	takes = append(takes, "LR", "WeightDecay")
	for _, s := range []struct {
		name       string
		value      any
		set, valid bool
		want       string
	}{
		{"LR", o.LR, o.LR != 0, isSize(o.LR), size},
		{"WeightDecay", o.WeightDecay, o.WeightDecay != 0, isSize(o.WeightDecay), size},
		{"Momentum", o.Momentum, o.Momentum != 0, isSize(o.Momentum), size},
		{"Dampening", o.Dampening, o.Dampening != 0, !math.IsNaN(o.Dampening) && !math.IsInf(o.Dampening, 0), "a finite number"},
		{"Nesterov", o.Nesterov, o.Nesterov, !o.Nesterov || o.Momentum > 0 && o.Dampening == 0,
			fmt.Sprintf("Momentum above 0 and Dampening 0 with it, not %v and %v", o.Momentum, o.Dampening)},
		{"Betas[0]", o.Betas[0], o.Betas[0] != 0, isPart(o.Betas[0]), part},
		{"Betas[1]", o.Betas[1], o.Betas[1] != 0, isPart(o.Betas[1]), part},
		{"Eps", o.Eps, o.Eps != 0, isSize(o.Eps), size},
		{"Alpha", o.Alpha, o.Alpha != 0, isPart(o.Alpha), part},
		{"Centered", o.Centered, o.Centered, true, ""},
	} {
		if s.set && !slices.Contains(takes, s.name) {
			return &ConfigError{Of: "optim: " + optimizer, Field: s.name, Value: s.value,
				Problem: "it is no setting of " + optimizer, Remedy: "want it left out"}
		}
		if !s.valid {
			return &ConfigError{Of: "optim: " + optimizer, Field: s.name, Value: s.value, Remedy: "want " + s.want}
		}
	}
	return o.checkGroups(optimizer)
}

// isSize and isPart are false for NaN.
func isSize(v float64) bool { return v >= 0 && !math.IsInf(v, 0) }
func isPart(v float64) bool { return v >= 0 && v < 1 }

// orElse is v, or a default in place of 0.
func orElse(v, otherwise float64) float64 {
	if v == 0 {
		return otherwise
	}
	return v
}
