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

// stepDecay is base gamma^floor(step / every) (torch.optim.lr_scheduler.StepLR).
func stepDecay(base, gamma float64, every int) Schedule {
	return func(step int) float64 { return base * math.Pow(gamma, float64(step/every)) }
}

// cosine is low + (base - low) (1 + cos(pi step / steps)) / 2: half a cosine from base to low
// (CosineAnnealingLR; Loshchilov and Hutter 2017, eq. 5, without restarts). It stays at low
// afterwards, where PyTorch's would rise again.
func cosine(base, low float64, steps int) Schedule {
	return func(step int) float64 {
		if step >= steps {
			return low
		}
		return low + (base-low)*(1+math.Cos(math.Pi*float64(step)/float64(steps)))/2
	}
}

// warmup rises from a rate in a straight line of steps to where another schedule begins (LinearLR, with
// rates in place of factors), then follows that one from its step 0.
func warmup(from float64, steps int, then Schedule) Schedule {
	to := then(0)
	return func(step int) float64 {
		if step < steps {
			return from + (to-from)*float64(step)/float64(steps)
		}
		return then(step - steps)
	}
}

// ScheduleConfig describes a schedule.
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

// NewSchedule makes a schedule by its name: "constant"; "cosine", half a cosine from LR down to MinLR; or
// "step", which multiplies the rate by Gamma each StepSize steps.
func NewSchedule(name string, o ScheduleConfig) (Schedule, error) {
	if !slices.Contains(ScheduleNames(), name) {
		return nil, &ConfigError{Of: "optim", Field: "Schedule", Value: name,
			Remedy: arg.OneOf(name, ScheduleNames())}
	}
	if err := o.check(name); err != nil {
		return nil, err
	}
	after := o.TotalSteps - o.WarmupSteps
	s := Schedule(func(int) float64 { return o.LR })
	switch name {
	case "cosine":
		s = cosine(o.LR, o.MinLR, after)
	case "step":
		s = stepDecay(o.LR, cmp.Or(o.Gamma, 0.1), cmp.Or(o.StepSize, max(1, after/3)))
	}
	if o.WarmupSteps > 0 {
		s = warmup(o.LR/float64(o.WarmupSteps+1), o.WarmupSteps, s)
	}
	return s, nil
}

func (o ScheduleConfig) check(name string) (err error) {
	check := func(field string, value any, valid bool, want string) {
		if err == nil && !valid {
			err = &ConfigError{Of: "optim: " + name + " schedule", Field: field, Value: value, Remedy: want}
		}
	}
	only := func(kind, field string, value any, zero bool) {
		check(field, value, name == kind || zero, "want it left out; it is for the "+kind+" schedule")
	}
	check("LR", o.LR, o.LR > 0 && isSize(o.LR), "want a finite number above 0")
	only("step", "StepSize", o.StepSize, o.StepSize == 0)
	only("step", "Gamma", o.Gamma, o.Gamma == 0)
	only("cosine", "MinLR", o.MinLR, o.MinLR == 0)
	check("MinLR", o.MinLR, isSize(o.MinLR) && o.MinLR <= o.LR, "want a number from 0 to LR")
	check("WarmupSteps", o.WarmupSteps, o.WarmupSteps >= 0, "want at least 0")
	check("StepSize", o.StepSize, o.StepSize >= 0, "want at least 0")
	check("Gamma", o.Gamma, isSize(o.Gamma), "want a finite number that is not negative")
	open := name == "constant" || name == "step" && o.StepSize > 0 // needs no length
	check("TotalSteps", o.TotalSteps, o.TotalSteps >= 0 && (open || o.TotalSteps > o.WarmupSteps),
		"want more than those of the warm-up, or a StepSize of a step schedule")
	return err
}
