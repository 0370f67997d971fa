package optim_test

import (
	"math"
	"strings"
	"testing"

	"penstock.example/optim"
)

func TestSchedulesFromNames(t *testing.T) {
	for _, row := range []struct {
		name   string
		config optim.ScheduleConfig
		want   map[int]float64
	}{
		{"constant", optim.ScheduleConfig{LR: 0.4}, map[int]float64{0: 0.4, 1000: 0.4}},
		{"constant", optim.ScheduleConfig{LR: 0.4, WarmupSteps: 3}, map[int]float64{0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4, 4: 0.4}},
		{"cosine", optim.ScheduleConfig{LR: 1, TotalSteps: 10}, map[int]float64{0: 1, 5: 0.5, 10: 0, 11: 0, 20: 0}},
		{"cosine", optim.ScheduleConfig{LR: 1, TotalSteps: 14, WarmupSteps: 4, MinLR: 0.1},
			map[int]float64{0: 0.2, 3: 0.8, 4: 1, 9: 0.55, 14: 0.1, 50: 0.1}},
		{"step", optim.ScheduleConfig{LR: 1, StepSize: 2, Gamma: 0.5}, map[int]float64{0: 1, 1: 1, 2: 0.5, 5: 0.25}},
		{"step", optim.ScheduleConfig{LR: 1, TotalSteps: 9}, map[int]float64{2: 1, 3: 0.1, 6: 0.01, 8: 0.01}},
		{"step", optim.ScheduleConfig{LR: 1, TotalSteps: 10, WarmupSteps: 1}, map[int]float64{0: 0.5, 1: 1, 3: 1, 4: 0.1, 7: 0.01}},
		{"step", optim.ScheduleConfig{LR: 1, TotalSteps: 2}, map[int]float64{0: 1, 1: 0.1}},
	} {
		s, err := optim.NewSchedule(row.name, row.config)
		if err != nil {
			t.Errorf("%s %+v: %v", row.name, row.config, err)
			continue
		}
		for step, want := range row.want {
			if got := s.LR(step); math.Abs(got-want) > 1e-12 {
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
		{"linear", optim.ScheduleConfig{LR: 1}, `Schedule is "linear"; want one of constant, cosine, step`},
		{"constant", optim.ScheduleConfig{}, "constant schedule: LR is 0"},
		{"constant", optim.ScheduleConfig{LR: -1}, "LR is -1"},
		{"constant", optim.ScheduleConfig{LR: math.NaN()}, "LR is NaN"},
		{"constant", optim.ScheduleConfig{LR: 1, WarmupSteps: -1}, "WarmupSteps is -1"},
		{"constant", optim.ScheduleConfig{LR: 1, TotalSteps: -1}, "TotalSteps is -1"},
		{"constant", optim.ScheduleConfig{LR: 1, StepSize: 1}, "StepSize is 1; want it left out"},
		{"cosine", optim.ScheduleConfig{LR: 1, TotalSteps: 9, Gamma: 0.5}, "Gamma is 0.5; want it left out"},
		{"step", optim.ScheduleConfig{LR: 1, TotalSteps: 9, MinLR: 0.5}, "MinLR is 0.5; want it left out"},
		{"cosine", optim.ScheduleConfig{LR: 1}, "TotalSteps is 0; want more than the 0 of the warm-up"},
		{"cosine", optim.ScheduleConfig{LR: 1, TotalSteps: 5, WarmupSteps: 5}, "TotalSteps is 5"},
		{"cosine", optim.ScheduleConfig{LR: 1, TotalSteps: 5, MinLR: 2}, "MinLR is 2"},
		{"cosine", optim.ScheduleConfig{LR: 1, TotalSteps: 5, MinLR: -1}, "MinLR is -1"},
		{"step", optim.ScheduleConfig{LR: 1}, "TotalSteps is 0; want more than the 0 of the warm-up, or a StepSize"},
		{"step", optim.ScheduleConfig{LR: 1, StepSize: -2}, "StepSize is -2"},
		{"step", optim.ScheduleConfig{LR: 1, StepSize: 2, Gamma: -1}, "Gamma is -1"},
	} {
		_, err := optim.NewSchedule(row.name, row.config)
		if err == nil || !strings.HasPrefix(err.Error(), "optim: ") || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s %+v: got %v, want %q", row.name, row.config, err, row.want)
		}
	}
}

// A warm-up ends where the schedule after it begins, whichever that is.
func TestWarmupJoinsAnySchedule(t *testing.T) {
	for _, then := range []optim.Schedule{
		optim.Constant(3),
		optim.Step{Base: 3, Every: 2, Gamma: 0.1},
		optim.Cosine{Base: 3, Steps: 8},
		optim.Linear{From: 3, To: 1, Steps: 4},
		optim.Warmup{Steps: 2, From: 3, Then: optim.Constant(5)},
	} {
		s := optim.Warmup{Steps: 3, From: 0, Then: then}
		for step, want := range []float64{0, 1, 2, 3} {
			if got := s.LR(step); math.Abs(got-want) > 1e-12 {
				t.Errorf("%T: step %d has %v, want %v", then, step, got, want)
			}
		}
		for step := 3; step < 20; step++ {
			if s.LR(step) != then.LR(step-3) {
				t.Errorf("%T: step %d has %v, want %v", then, step, s.LR(step), then.LR(step-3))
			}
		}
	}
}
