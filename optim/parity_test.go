package optim_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/torch"
)

// paramsFrom makes parameters of tensors that read gives, under the names of the list.
func paramsFrom(t *testing.T, c *torch.Ctx, names []string,
	read func(name string) *torch.Tensor) []nn.NamedParam {
	t.Helper()
	m := &module{}
	t.Cleanup(func() { nn.Free(m) })
	for _, name := range names {
		v := read(name)
		m.Param(name, nn.Zeros, v.Shape()...).SetTensor(c.Keep(v))
	}
	return nn.Params(m)
}

// far says by how much got is off, relative to want, at worst. Differences of less than 1e-7 (a
// float32 near 1) do not count.
func far(got, want *torch.Tensor) float64 {
	worst := 0.0
	w := torch.Values[float32](want)
	for i, g := range torch.Values[float32](got) {
		if d := math.Abs(float64(g - w[i])); d > 1e-7 || math.IsNaN(d) {
			worst = max(worst, d/math.Abs(float64(w[i])))
		}
	}
	return worst
}

func TestUpdatesAreThoseOfPyTorch(t *testing.T) {
	// The names of the fields are PyTorch's but for one, and JSON does not mind the case.
	type args struct {
		optim.Config
		Decay float64 `json:"weight_decay"`
	}
	for _, row := range readCases[struct {
		Name, Optimizer, File string
		Args                  args
		LRs                   []float64
		Steps                 int
		Params                []string
	}](t, "cases.json") {
		t.Run(row.Name, func(t *testing.T) {
			c := torchtest.New(t, torch.Options{})
			read := fixture(t, c, row.File)
			params := paramsFrom(t, c, row.Params,
				func(name string) *torch.Tensor { return read("param0." + name) })
			config := row.Args.Config
			config.WeightDecay = row.Args.Decay
			opt := newOptimizer(t, strings.ToLower(row.Optimizer), config)
			if opt.LR() != row.Args.LR {
				t.Fatalf("the rate is %v, want %v", opt.LR(), row.Args.LR)
			}
			for step := 1; step <= row.Steps; step++ {
				opt.SetLR(row.LRs[step-1])
				for _, p := range params {
					p.Tensor().SetGradOf(read(fmt.Sprintf("grad.%d.%s", step, p.Name)))
				}
				opt.Step(c, params)
				for _, p := range params {
					if d := far(p.Tensor(), read(fmt.Sprintf("param.%d.%s", step, p.Name))); !(d <= 1e-6) {
						t.Errorf("step %d, %s: off by %.1g", step, p.Name, d)
					}
					if d := far(c.GradOf(p.Tensor()), read(fmt.Sprintf("grad.%d.%s", step, p.Name))); d != 0 {
						t.Errorf("step %d changed the gradient of %s", step, p.Name)
					}
				}
			}
		})
	}
}

func TestClippingIsThatOfPyTorch(t *testing.T) {
	for _, row := range readCases[struct {
		Name, File string
		Args       struct {
			MaxNorm float64 `json:"max_norm"`
		}
		Norm   float64
		Params []string
	}](t, "clip.json") {
		t.Run(row.Name, func(t *testing.T) {
			c := torchtest.New(t, torch.Options{})
			read := fixture(t, c, row.File)
			params := paramsFrom(t, c, row.Params,
				func(name string) *torch.Tensor { return c.Op("aten::zeros_like", read("grad."+name)) })
			for _, p := range params {
				p.Tensor().SetGradOf(read("grad." + p.Name))
			}
			norm := must.Get(clip(c, params, row.Args.MaxNorm))(t)
			if math.Abs(norm-row.Norm) > 1e-6*row.Norm {
				t.Errorf("the norm is %v, want %v", norm, row.Norm)
			}
			for _, p := range params {
				if d := far(c.GradOf(p.Tensor()), read("clipped."+p.Name)); !(d <= 1e-6) {
					t.Errorf("%s: off by %.1g", p.Name, d)
				}
			}
		})
	}
}

func TestSchedulesAreThoseOfPyTorch(t *testing.T) {
	type args struct {
		Base   float64 `json:"base_lr"`
		Size   int     `json:"step_size"`
		Gamma  float64
		TMax   int     `json:"T_max"`
		Min    float64 `json:"eta_min"`
		From   float64 `json:"start_factor"`
		To     float64 `json:"end_factor"`
		Iters  int     `json:"total_iters"`
		Warmup int     `json:"warmup_steps"`
	}
	schedules := map[string]func(a args) optim.Schedule{
		"StepLR": func(a args) optim.Schedule {
			return optim.StepDecay(a.Base, a.Gamma, a.Size)
		},
		"CosineAnnealingLR": func(a args) optim.Schedule {
			return optim.Cosine(a.Base, a.Min, a.TMax)
		},
		"LinearLR": func(a args) optim.Schedule {
			return optim.Warmup(a.Base*a.From, a.Iters, func(int) float64 { return a.Base * a.To })
		},
		"WarmupCosine": func(a args) optim.Schedule {
			return optim.Warmup(a.Base*a.From, a.Warmup, optim.Cosine(a.Base, a.Min, a.TMax))
		},
	}
	var met []string
	for _, row := range readCases[struct {
		Name, Schedule string
		Args           args
		LR             []float64
	}](t, "schedules.json") {
		make, ok := schedules[row.Schedule]
		if !ok {
			t.Errorf("%s: there is no %s", row.Name, row.Schedule)
			continue
		}
		met = append(met, row.Schedule)
		s := make(row.Args)
		for step, want := range row.LR {
			if got := s(step); math.Abs(got-want) > 1e-12*want {
				t.Errorf("%s: step %d has %v, want %v", row.Name, step, got, want)
			}
		}
	}
	for name := range schedules {
		if !slices.Contains(met, name) {
			t.Errorf("no case of %s", name)
		}
	}
}

// PyTorch's rates by step, of LinearLR, OneCycleLR and, after each loss, ReduceLROnPlateau.
func TestRatesByNameAreThoseOfPyTorch(t *testing.T) {
	for _, row := range []struct {
		name   string
		config optim.ScheduleConfig
		want   []float64
	}{
		{"linear", optim.ScheduleConfig{TotalSteps: 5}, []float64{0.4, 0.32, 0.24, 0.16, 0.08, 0, 0}},
		{"linear", optim.ScheduleConfig{TotalSteps: 5, MinLR: 0.1},
			[]float64{0.4, 0.34, 0.28, 0.22, 0.16, 0.1}},
		{"one-cycle", optim.ScheduleConfig{TotalSteps: 10}, []float64{0.016, 0.208, 0.4, 0.38019385280538953,
			0.3246982615799052, 0.24450480877451572, 0.1554967912254843, 0.0753033384200948,
			0.019807747194610516, 1.6e-06, 1.6e-06}},
		{"one-cycle", optim.ScheduleConfig{TotalSteps: 7, Rise: 0.5, DivFactor: 10, FinalDivFactor: 100},
			[]float64{0.04, 0.16437694101250946, 0.36562305898749053, 0.38021357980690335,
				0.24465968260447163,
				0.07562673758862505, 0.0004}},
	} {
		row.config.LR = 0.4
		rate := must.Get(optim.NewSchedule(row.name, row.config))(t)
		for step, want := range row.want {
			if got := rate(step); math.Abs(got-want) > 1e-15 {
				t.Errorf("%s %+v: step %d has %v, want %v", row.name, row.config, step, got, want)
			}
		}
	}
	p := optim.Plateau{Factor: 0.5, Patience: 1, Lowest: 0.09 / 0.4}
	losses := []float64{1, 0.99995, 0.9, 0.95, 0.91, 0.92, 0.93, 0.9, 0.9, 0.9, 0.8, 0.9, 0.9, 0.9}
	for i, want := range []float64{0.4, 0.4, 0.4, 0.4, 0.2, 0.2, 0.1, 0.1, 0.09, 0.09, 0.09, 0.09, 0.09,
		0.09} {
		if p.Observe(losses[i]); math.Abs(0.4*p.Scale-want) > 1e-15 {
			t.Errorf("plateau: %v after loss %v, want %v", 0.4*p.Scale, losses[i], want)
		}
	}
}
