package optim_test

import (
	"math"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/optim"
	"penstock.example/torch"
)

func TestInvalidSettingsAreNamed(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, row := range []struct {
		name   string
		config optim.Config
		want   string
	}{
		{"lion", optim.Config{}, `Optimizer is "lion"; want one of adam, adamw, rmsprop, sgd`},
		{"", optim.Config{}, `Optimizer is ""`},
		{"sgd", optim.Config{LR: -1}, "sgd: LR is -1"},
		{"sgd", optim.Config{LR: nan}, "sgd: LR is NaN"},
		{"adam", optim.Config{LR: inf}, "adam: LR is +Inf"},
		{"adamw", optim.Config{WeightDecay: -0.1}, "adamw: WeightDecay is -0.1"},
		{"sgd", optim.Config{Momentum: -0.9}, "sgd: Momentum is -0.9"},
		{"sgd", optim.Config{Dampening: nan}, "sgd: Dampening is NaN"},
		{"sgd", optim.Config{Nesterov: true}, "sgd: Nesterov is true; want Momentum above 0 and Dampening 0 with it, not 0 and 0"},
		{"sgd", optim.Config{Nesterov: true, Momentum: 0.9, Dampening: 0.5}, "not 0.9 and 0.5"},
		{"adam", optim.Config{Betas: [2]float64{1, 0.9}}, "adam: Betas[0] is 1; want a number from 0 to 1, 1 excluded"},
		{"adam", optim.Config{Betas: [2]float64{0.9, -0.1}}, "adam: Betas[1] is -0.1"},
		{"adam", optim.Config{Betas: [2]float64{0.9, nan}}, "adam: Betas[1] is NaN"},
		{"adam", optim.Config{Eps: -1e-8}, "adam: Eps is -1e-08"},
		{"rmsprop", optim.Config{Alpha: 1}, "rmsprop: Alpha is 1"},
		{"rmsprop", optim.Config{Alpha: -1}, "rmsprop: Alpha is -1"},
		{"adam", optim.Config{Momentum: 0.9}, "adam: Momentum is 0.9: it is no setting of adam"},
		{"adamw", optim.Config{Nesterov: true}, "adamw: Nesterov is true: it is no setting of adamw"},
		{"adam", optim.Config{Alpha: 0.9}, "adam: Alpha is "},
		{"sgd", optim.Config{Betas: [2]float64{0.9, 0}}, "sgd: Betas[0] is "},
		{"sgd", optim.Config{Eps: 1}, "sgd: Eps is "},
		{"sgd", optim.Config{Centered: true}, "sgd: Centered is "},
		{"rmsprop", optim.Config{Dampening: 0.1}, "rmsprop: Dampening is "},
	} {
		opt, err := optim.New(row.name, row.config)
		if err == nil || !strings.HasPrefix(err.Error(), "optim: ") || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s %+v: got %v, want %q", row.name, row.config, err, row.want)
		}
		if opt != nil {
			t.Errorf("%s %+v: there is an optimizer", row.name, row.config)
		}
	}
}

func TestZeroConfigsAreTheDefaults(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	for name, config := range map[string]optim.Config{
		"sgd":     {LR: 0.001},
		"adam":    {LR: 0.001, Betas: [2]float64{0.9, 0.999}, Eps: 1e-8},
		"adamw":   {LR: 0.001, Betas: [2]float64{0.9, 0.999}, Eps: 1e-8},
		"rmsprop": {LR: 0.01, Alpha: 0.99, Eps: 1e-8},
	} {
		a, b := newModel(t, torch.CPU(0)), newModel(t, torch.CPU(0))
		setGrads(c, a, 0)
		setGrads(c, b, 0)
		newOptimizer(t, name, optim.Config{}).Step(c, a)
		newOptimizer(t, name, config).Step(c, b)
		differ(t, name, values(a), values(b))
	}
}

func TestNamesAreThoseNewKnows(t *testing.T) {
	if got := strings.Join(optim.Names(), " "); got != "adam adamw rmsprop sgd" {
		t.Errorf("got %q", got)
	}
	for _, name := range optim.Names() {
		newOptimizer(t, name, optim.Config{})
	}
}

func TestSetLR(t *testing.T) {
	opt := newOptimizer(t, "sgd", optim.Config{LR: 0.5})
	opt.SetLR(0)
	if opt.LR() != 0 {
		t.Errorf("the rate is %v, want 0", opt.LR())
	}
	for _, bad := range []float64{-1, math.NaN(), math.Inf(1)} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("a rate of %v was taken", bad)
				}
			}()
			opt.SetLR(bad)
		}()
	}
}
