package optim_test

import (
	"errors"
	"maps"
	"math"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	_ "penstock.example/internal/draws" // sets the number of draws
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/torch"
)

func TestInvalidSettingsAreNamed(t *testing.T) {
	nan := math.NaN()
	for _, row := range []struct {
		name   string
		config optim.Config
		want   string
	}{
		{"lion", optim.Config{}, `Optimizer is "lion"; want one of adam, adamw, rmsprop, sgd`},
		{"sgd", optim.Config{LR: -1}, "sgd: LR is -1"},
		{"sgd", optim.Config{LR: nan}, "sgd: LR is NaN"},
		{"adamw", optim.Config{WeightDecay: -0.1}, "adamw: WeightDecay is -0.1"},
		{"sgd", optim.Config{Dampening: nan}, "sgd: Dampening is NaN"},
		{"sgd", optim.Config{Nesterov: true}, "sgd: Nesterov is true; want Momentum above 0 and " +
			"Dampening 0 with it, not 0 and 0"},
		{"sgd", optim.Config{Nesterov: true, Momentum: 0.9, Dampening: 0.5}, "not 0.9 and 0.5"},
		{"adam", optim.Config{Betas: [2]float64{1, 0.9}}, "adam: Betas[0] is 1; want a number from 0 " +
			"to 1, 1 excluded"},
		{"adam", optim.Config{Betas: [2]float64{0.9, -0.1}}, "adam: Betas[1] is -0.1"},
		{"adam", optim.Config{Eps: -1e-8}, "adam: Eps is -1e-08"},
		{"rmsprop", optim.Config{Alpha: 1}, "rmsprop: Alpha is 1"},
		{"adam", optim.Config{Momentum: 0.9}, "adam: Momentum is 0.9: adam has no such setting"},
		{"adamw", optim.Config{Nesterov: true}, "adamw: Nesterov is true: adamw has no such setting"},
		{"sgd", optim.Config{Betas: [2]float64{0.9, 0}}, "sgd: Betas[0] is "},
		{"sgd", optim.Config{Centered: true}, "sgd: Centered is "},
	} {
		opt, err := optim.New(row.name, row.config)
		if err == nil || !strings.HasPrefix(err.Error(), "optim: ") || !strings.Contains(err.Error(),
			row.want) {
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

// A group is updated as by an optimizer of its own, with its rate and its decay; a parameter is in the first
// group that has its name, and needs the memory of that group.
func TestGroups(t *testing.T) {
	torchtest.Check(t)
	none, some := 0.0, 0.3
	for _, row := range rules {
		c := torch.NewCtx(torch.Options{Threads: 1})
		grouped, apart := newModel(t, torch.CPU(0)), newModel(t, torch.CPU(0))
		first, second := apart[0].Name, apart[1].Name
		config := row.config
		config.Groups = []optim.Group{{Params: first[:len(first)-1] + "*" + first[len(first)-1:],
			Scale: 0.5, WeightDecay: &some}, {Params: second, WeightDecay: &none}, {Params: first,
			Scale: 9}, {Params: "nothing*"}}
		one := newOptimizer(t, row.name, config)
		body, bare := row.config, row.config
		body.WeightDecay, bare.WeightDecay = some, none
		each := []optim.Optimizer{newOptimizer(t, row.name, body), newOptimizer(t, row.name, bare),
			newOptimizer(t, row.name, row.config)}
		each[0].SetLR(0.5 * each[0].LR())
		lists := [][]nn.NamedParam{apart[:1], apart[1:2], apart[2:]}
		for step := range 3 {
			setGrads(c, grouped, step)
			setGrads(c, apart, step)
			need := optim.Need{}
			for i, o := range each {
				n := o.Need(lists[i])
				need.State, need.Scratch = need.State+n.State, max(need.Scratch, n.Scratch)
			}
			if got := one.Need(grouped); got != need {
				t.Errorf("%s: needs %+v; want %+v", row.title, got, need)
			}
			one.Step(c, grouped)
			for i, o := range each {
				o.Step(c, lists[i])
			}
		}
		kept := map[string]string{}
		for _, o := range each {
			maps.Copy(kept, state(o))
		}
		if !maps.Equal(values(grouped), values(apart)) || !maps.Equal(state(one), kept) {
			t.Errorf("%s: other bits than by an optimizer for each group", row.title)
		}
		c.Close()
	}
	for _, g := range []optim.Group{{Scale: 1}, {Params: "*", Scale: -1}, {Params: "*",
		WeightDecay: new(-1.0)}} {
		if _, err := optim.New("adam", optim.Config{Groups: []optim.Group{g}}); err == nil ||
			!strings.Contains(err.Error(), "optim: adam: Groups is "+strconv.Quote(g.Params)) {
			t.Errorf("%v: %v", g, err)
		}
	}
}

func TestSchedulesFromNames(t *testing.T) {
	for _, row := range []struct {
		name   string
		config optim.ScheduleConfig
		want   map[int]float64
	}{
		{"constant", optim.ScheduleConfig{LR: 0.4}, map[int]float64{0: 0.4, 1000: 0.4}},
		{"constant", optim.ScheduleConfig{LR: 0.4, WarmupSteps: 3}, map[int]float64{0: 0.1, 1: 0.2,
			2: 0.3, 3: 0.4, 4: 0.4}},
		{"cosine", optim.ScheduleConfig{LR: 1, TotalSteps: 10}, map[int]float64{0: 1, 5: 0.5, 10: 0,
			11: 0, 20: 0}},
		{"cosine", optim.ScheduleConfig{LR: 1, TotalSteps: 14, WarmupSteps: 4, MinLR: 0.1},
			map[int]float64{0: 0.2, 3: 0.8, 4: 1, 9: 0.55, 14: 0.1, 50: 0.1}},
		{"step", optim.ScheduleConfig{LR: 1, StepSize: 2, Gamma: 0.5}, map[int]float64{0: 1, 1: 1, 2: 0.5,
			5: 0.25}},
		{"step", optim.ScheduleConfig{LR: 1, TotalSteps: 9}, map[int]float64{2: 1, 3: 0.1, 6: 0.01, 8: 0.01}},
		{"step", optim.ScheduleConfig{LR: 1, TotalSteps: 10, WarmupSteps: 1}, map[int]float64{0: 0.5,
			1: 1, 3: 1, 4: 0.1, 7: 0.01}},
		{"step", optim.ScheduleConfig{LR: 1, TotalSteps: 2}, map[int]float64{0: 1, 1: 0.1}},
	} {
		s, err := optim.NewSchedule(row.name, row.config)
		if err != nil {
			t.Errorf("%s %+v: %v", row.name, row.config, err)
			continue
		}
		for step, want := range row.want {
			if got := s(step); math.Abs(got-want) > 1e-12 {
				t.Errorf("%s %+v: step %d has %v, want %v", row.name, row.config, step, got, want)
			}
		}
	}
}

func TestImpossibleSchedulesAreNamed(t *testing.T) {
	for _, row := range []struct {
		name   string
		config optim.ScheduleConfig
		want   string
	}{
		{"lineal", optim.ScheduleConfig{LR: 1}, `Schedule is "lineal"; did you mean linear? want one of`},
		{"one-cycle", optim.ScheduleConfig{LR: 1, TotalSteps: 9, WarmupSteps: 2}, "WarmupSteps is 2; want"},
		{"one-cycle", optim.ScheduleConfig{LR: 1, TotalSteps: 9, Rise: 1}, "Rise is 1; want a number from 0"},
		{"constant", optim.ScheduleConfig{}, "constant schedule: LR is 0"},
		{"constant", optim.ScheduleConfig{LR: math.NaN()}, "LR is NaN"},
		{"constant", optim.ScheduleConfig{LR: 1, WarmupSteps: -1}, "WarmupSteps is -1"},
		{"constant", optim.ScheduleConfig{LR: 1, StepSize: 1}, "StepSize is 1; want it left out"},
		{"cosine", optim.ScheduleConfig{LR: 1, TotalSteps: 9, Gamma: 0.5}, "Gamma is 0.5; want it left out"},
		{"step", optim.ScheduleConfig{LR: 1, TotalSteps: 9, MinLR: 0.5}, "MinLR is 0.5; want it left out"},
		{"cosine", optim.ScheduleConfig{LR: 1}, "TotalSteps is 0; want more steps than the warm-up"},
		{"cosine", optim.ScheduleConfig{LR: 1, TotalSteps: 5, MinLR: 2}, "MinLR is 2"},
		{"step", optim.ScheduleConfig{LR: 1}, "TotalSteps is 0; want more steps than the warm-up, " +
			"or a StepSize"},
		{"step", optim.ScheduleConfig{LR: 1, StepSize: -2}, "StepSize is -2"},
		{"step", optim.ScheduleConfig{LR: 1, StepSize: 2, Gamma: -1}, "Gamma is -1"},
	} {
		_, err := optim.NewSchedule(row.name, row.config)
		if err == nil || !strings.HasPrefix(err.Error(), "optim: ") || !strings.Contains(err.Error(),
			row.want) {
			t.Errorf("%s %+v: got %v, want %q", row.name, row.config, err, row.want)
		}
	}
}

// A scaler does what torch.amp.GradScaler does: half of the scale after gradients that are not
// finite, twice the scale after Interval updates in a row.
func TestScaler(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		interval := rapid.IntRange(1, 4).Draw(t, "interval")
		s := optim.Scaler{Scale: 8, Interval: interval}
		scale, row, skipped := 8.0, 0, 0
		for _, finite := range rapid.SliceOfN(rapid.Bool(), 0, 60).Draw(t, "finite") {
			if got := s.Factor(); got != scale {
				t.Fatalf("scale %v, want %v", got, scale)
			}
			err := s.Done(finite)
			if want := !finite && scale == 1; errors.Is(err, optim.ErrNeverFinite) != want ||
				(err != nil) != want {
				t.Fatalf("at scale %v, finite %v: %v", scale, finite, err)
			}
			switch row++; {
			case !finite:
				row, scale = 0, max(scale/2, 1)
				skipped++
			case row == interval:
				row, scale = 0, min(scale*2, 1<<24)
			}
		}
		if s.Skipped != skipped || s.Validate() != nil {
			t.Fatalf("%+v, %v, want %d skipped", s, s.Validate(), skipped)
		}
	})
	var zero optim.Scaler
	if zero.Validate() != nil || zero.Factor() != 65536 || zero.Interval != 2000 {
		t.Errorf("the zero scaler is %+v", zero)
	}
	for _, wrong := range []optim.Scaler{{Scale: 3}, {Scale: -2}, {Scale: 0.5}, {Scale: 1 << 25},
		{Interval: -1}, {Passed: -1}, {Skipped: -1}} {
		if wrong.Validate() == nil {
			t.Errorf("%+v is accepted", wrong)
		}
	}
}
