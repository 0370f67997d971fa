package optim

import (
	"cmp"
	"math"
	"slices"

	"penstock.example/internal/arg"
)

// Schedule returns the learning rate of a step, counted from 0. Schedules have no state, and agree with
// PyTorch's recursive ones.
type Schedule func(step int) float64

// stepDecay is base gamma^floor(step / every) (torch.optim.lr_scheduler.StepLR).
func stepDecay(base, gamma float64, every int) Schedule {
	return func(step int) float64 { return base * math.Pow(gamma, float64(step/every)) }
}

// cosine is low + (base - low) (1 + cos(pi step / steps)) / 2: half a cosine from base to low
// (CosineAnnealingLR; Loshchilov and Hutter 2017, eq. 5, without restarts). Afterwards it stays at low;
// PyTorch's would rise again.
func cosine(base, low float64, steps int) Schedule {
	return func(step int) float64 {
		if step >= steps {
			return low
		}
		return low + (base-low)*(1+math.Cos(math.Pi*float64(step)/float64(steps)))/2
	}
}

// warmup rises linearly from a rate to the first rate of next (LinearLR), then follows next.
func warmup(from float64, steps int, next Schedule) Schedule {
	to := next(0)
	return func(step int) float64 {
		if step < steps {
			return from + (to-from)*float64(step)/float64(steps)
		}
		return next(step - steps)
	}
}

// ScheduleConfig describes a schedule.
type ScheduleConfig struct {
	LR          float64 // the highest rate, above 0
	WarmupSteps int     // steps of a linear rise from LR/(WarmupSteps+1) to LR; 0 is none
	TotalSteps  int     // with the warm-up; required for "cosine", and for "step" without StepSize
	StepSize    int     // steps between drops of "step"; 0 means a third of the steps after the warm-up
	Gamma       float64 // factor of each drop of "step"; 0 means 0.1
	MinLR       float64 // last rate of "cosine"
}

// ScheduleNames lists the names of schedules.
func ScheduleNames() []string { return []string{"constant", "cosine", "step"} }

// NewSchedule returns the named schedule: "constant"; "cosine", half a cosine from LR down to MinLR; or
// "step", which multiplies the rate by Gamma every StepSize steps.
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
		check(field, value, name == kind || zero, "want it left out; only the "+kind+" schedule has it")
	}
	check("LR", o.LR, o.LR > 0 && isSize(o.LR), "want a finite number above 0")
	only("step", "StepSize", o.StepSize, o.StepSize == 0)
	only("step", "Gamma", o.Gamma, o.Gamma == 0)
	only("cosine", "MinLR", o.MinLR, o.MinLR == 0)
	check("MinLR", o.MinLR, isSize(o.MinLR) && o.MinLR <= o.LR, "want a number from 0 to LR")
	check("WarmupSteps", o.WarmupSteps, o.WarmupSteps >= 0, "want at least 0")
	check("StepSize", o.StepSize, o.StepSize >= 0, "want at least 0")
	check("Gamma", o.Gamma, isSize(o.Gamma), "want a finite number that is not negative")
	endless := name == "constant" || name == "step" && o.StepSize > 0
	check("TotalSteps", o.TotalSteps, o.TotalSteps >= 0 && (endless || o.TotalSteps > o.WarmupSteps),
		"want more steps than the warm-up, or a StepSize for the step schedule")
	return err
}
