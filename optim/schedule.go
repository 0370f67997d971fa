package optim

import (
	"cmp"
	"math"
	"slices"

	"penstock.example/internal/arg"
)

// Schedule is the learning rate in force during a step, counted from 0. Schedules have no state: resuming
// needs the number of the step and nothing else. They agree with PyTorch's schedulers of the same
// purpose, which compute the same recursively.
type Schedule func(step int) float64

// Constant is the same rate for ever.
func Constant(rate float64) Schedule { return func(int) float64 { return rate } }

// StepDecay is base gamma^floor(step / every) (torch.optim.lr_scheduler.StepLR).
func StepDecay(base, gamma float64, every int) Schedule {
	return func(step int) float64 { return base * math.Pow(gamma, float64(step/every)) }
}

// Cosine is low + (base - low) (1 + cos(pi step / steps)) / 2: half a cosine from base to low
// (CosineAnnealingLR; Loshchilov and Hutter 2017, eq. 5, without restarts). It stays at low
// afterwards, where PyTorch's would rise again.
func Cosine(base, low float64, steps int) Schedule {
	return func(step int) float64 {
		if step >= steps {
			return low
		}
		return low + (base-low)*(1+math.Cos(math.Pi*float64(step)/float64(steps)))/2
	}
}

// Linear goes from one rate to another in a straight line of steps and stays there (LinearLR, with rates
// in place of factors).
func Linear(from, to float64, steps int) Schedule {
	return func(step int) float64 {
		if step >= steps {
			return to
		}
		return from + (to-from)*float64(step)/float64(steps)
	}
}

// Warmup rises from a rate in a straight line of steps to where another schedule begins, then follows
// that one from its step 0.
func Warmup(from float64, steps int, then Schedule) Schedule {
	rise := Linear(from, then(0), steps)
	return func(step int) float64 {
		if step < steps {
			return rise(step)
		}
		return then(step - steps)
	}
}

// ScheduleConfig describes a schedule as a command's flags do.
type ScheduleConfig struct {
	// LR is the highest rate, which must be above 0.
	LR float64
	// WarmupSteps is how many steps rise to LR, evenly from LR/(WarmupSteps+1), before the schedule
	// proper begins; 0 is none.
	WarmupSteps int
	// TotalSteps is the length of the run, warm-up included. A cosine needs it; a step schedule
	// needs it or StepSize.
	TotalSteps int
	// StepSize is the number of steps between the drops of a step schedule; 0 stands for a third of
	// what follows the warm-up.
	StepSize int
	// Gamma is the factor of each drop of a step schedule; 0 stands for 0.1.
	Gamma float64
	// MinLR is where a cosine ends.
	MinLR float64
}

// ScheduleNames lists what NewSchedule knows.
func ScheduleNames() []string { return []string{"constant", "cosine", "step"} }

// NewSchedule makes a schedule by its name.
func NewSchedule(name string, o ScheduleConfig) (Schedule, error) {
	if !slices.Contains(ScheduleNames(), name) {
		return nil, &ConfigError{Of: "optim", Field: "Schedule", Value: name,
			Remedy: arg.OneOf(name, ScheduleNames())}
	}
	if err := o.check(name); err != nil {
		return nil, err
	}
	var s Schedule
	after := o.TotalSteps - o.WarmupSteps
	switch name {
	case "constant":
		s = Constant(o.LR)
	case "cosine":
		s = Cosine(o.LR, o.MinLR, after)
	case "step":
		every := o.StepSize
		if every == 0 {
			every = max(1, after/3)
		}
		s = StepDecay(o.LR, cmp.Or(o.Gamma, 0.1), every)
	}
	if o.WarmupSteps > 0 {
		s = Warmup(o.LR/float64(o.WarmupSteps+1), o.WarmupSteps, s)
	}
	return s, nil
}

func (o ScheduleConfig) check(name string) error {
	of := "optim: " + name + " schedule"
	after := o.TotalSteps > o.WarmupSteps
	for _, s := range []struct {
		field string
		value any
		valid bool
		want  string
	}{
		{"LR", o.LR, o.LR > 0 && isSize(o.LR), "want a finite number above 0"},
		{"StepSize", o.StepSize, name == "step" || o.StepSize == 0,
			"want it left out; it is for the step schedule"},
		{"Gamma", o.Gamma, name == "step" || o.Gamma == 0, "want it left out; it is for the step schedule"},
		{"MinLR", o.MinLR, name == "cosine" || o.MinLR == 0, "want it left out; it is for the cosine " +
			"schedule"},
		{"MinLR", o.MinLR, isSize(o.MinLR) && o.MinLR <= o.LR, "want a number from 0 to LR"},
		{"WarmupSteps", o.WarmupSteps, o.WarmupSteps >= 0, "want at least 0"},
		{"StepSize", o.StepSize, o.StepSize >= 0, "want at least 0"},
		{"Gamma", o.Gamma, isSize(o.Gamma), "want a finite number that is not negative"},
		{"TotalSteps", o.TotalSteps, o.TotalSteps >= 0 && (after || name != "cosine" && (name != "step" ||
			o.StepSize > 0)),
			"want more than those of the warm-up, or a StepSize of a step schedule"},
	} {
		if !s.valid {
			return &ConfigError{Of: of, Field: s.field, Value: s.value, Remedy: s.want}
		}
	}
	return nil
}
