package optim

import (
	"cmp"
	"math"
	"slices"

	"penstock.example/internal/arg"
)

// Schedule gives the learning rate in force during a step, counted from 0. Schedules are values
// without state: resuming needs the number of the step and nothing else. They agree with PyTorch's
// schedulers of the same purpose, which compute the same recursively.
type Schedule interface {
	LR(step int) float64
}

// Constant is the same rate for ever.
type Constant float64

// LR is the rate.
func (s Constant) LR(int) float64 { return float64(s) }

// Step multiplies the rate by Gamma every Every steps (torch.optim.lr_scheduler.StepLR).
type Step struct {
	Base  float64
	Every int
	Gamma float64
}

// LR is Base Gamma^floor(step / Every).
func (s Step) LR(step int) float64 { return s.Base * math.Pow(s.Gamma, float64(step/s.Every)) }

// MultiStep multiplies the rate by Gamma at each milestone (MultiStepLR), listed in any order.
type MultiStep struct {
	Base       float64
	Milestones []int
	Gamma      float64
}

// LR is Base Gamma^n, where n milestones are at or before step.
func (s MultiStep) LR(step int) float64 {
	n := 0
	for _, m := range s.Milestones {
		if m <= step {
			n++
		}
	}
	return s.Base * math.Pow(s.Gamma, float64(n))
}

// Cosine falls from Base to Min along half a cosine (CosineAnnealingLR; Loshchilov and Hutter 2017,
// eq. 5, without restarts). It stays at Min afterwards, where PyTorch's would rise again.
type Cosine struct {
	Base, Min float64
	Steps     int // step number Steps has the rate Min
}

// LR is Min + (Base - Min) (1 + cos(pi step / Steps)) / 2.
func (s Cosine) LR(step int) float64 {
	if step >= s.Steps {
		return s.Min
	}
	return s.Min + (s.Base-s.Min)*(1+math.Cos(math.Pi*float64(step)/float64(s.Steps)))/2
}

// Linear goes from From to To in a straight line and stays there (LinearLR, with rates in place of
// factors).
type Linear struct {
	From, To float64
	Steps    int // step number Steps has the rate To
}

// LR is From + (To - From) min(step / Steps, 1).
func (s Linear) LR(step int) float64 {
	if step >= s.Steps {
		return s.To
	}
	return s.From + (s.To-s.From)*float64(step)/float64(s.Steps)
}

// Warmup rises in a straight line to where another schedule begins, then follows that one from its
// step 0.
type Warmup struct {
	Steps int
	From  float64 // the rate of step 0
	Then  Schedule
}

// LR is a line from From to Then.LR(0), and Then.LR(step - Steps) after it.
func (s Warmup) LR(step int) float64 {
	if step < s.Steps {
		return Linear{s.From, s.Then.LR(0), s.Steps}.LR(step)
	}
	return s.Then.LR(step - s.Steps)
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
		s = Cosine{Base: o.LR, Min: o.MinLR, Steps: after}
	case "step":
		every := o.StepSize
		if every == 0 {
			every = max(1, after/3)
		}
		s = Step{Base: o.LR, Every: every, Gamma: cmp.Or(o.Gamma, 0.1)}
	}
	if o.WarmupSteps > 0 {
		s = Warmup{Steps: o.WarmupSteps, From: o.LR / float64(o.WarmupSteps+1), Then: s}
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
