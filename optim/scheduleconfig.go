package optim

import (
	"fmt"
	"slices"
	"strings"
)

// ScheduleConfig describes a schedule as a command's flags do.
type ScheduleConfig struct {
	// LR is the highest rate, which must be above 0.
	LR float64
	// WarmupSteps is how many steps rise to LR, evenly from LR/(WarmupSteps+1), before the schedule proper begins; 0 is none.
	WarmupSteps int
	// TotalSteps is the length of the run, warm-up included. A cosine needs it; a step schedule needs it or StepSize.
	TotalSteps int
	// StepSize is the number of steps between the drops of a step schedule; 0 stands for a third of what follows the warm-up.
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
		return nil, fmt.Errorf("optim: unknown schedule %q: want one of %s", name, strings.Join(ScheduleNames(), ", "))
	}
	if err := o.check(name); err != nil {
		return nil, fmt.Errorf("optim: %s schedule: %w", name, err)
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
		s = Step{Base: o.LR, Every: every, Gamma: orElse(o.Gamma, 0.1)}
	}
	if o.WarmupSteps > 0 {
		s = Warmup{Steps: o.WarmupSteps, From: o.LR / float64(o.WarmupSteps+1), Then: s}
	}
	return s, nil
}

func (o ScheduleConfig) check(name string) error {
	switch {
	case !(o.LR > 0) || !isSize(o.LR):
		return fmt.Errorf("LR is %v: want a finite number above 0", o.LR)
	case o.WarmupSteps < 0:
		return fmt.Errorf("WarmupSteps is %d: want 0 or more", o.WarmupSteps)
	case o.TotalSteps < 0:
		return fmt.Errorf("TotalSteps is %d: want 0 or more", o.TotalSteps)
	case name != "step" && o.StepSize != 0:
		return fmt.Errorf("it has no StepSize (%d is given)", o.StepSize)
	case name != "step" && o.Gamma != 0:
		return fmt.Errorf("it has no Gamma (%v is given)", o.Gamma)
	case name != "cosine" && o.MinLR != 0:
		return fmt.Errorf("it has no MinLR (%v is given)", o.MinLR)
	case o.StepSize < 0:
		return fmt.Errorf("StepSize is %d: want 0 or more", o.StepSize)
	case !isSize(o.Gamma):
		return fmt.Errorf("Gamma is %v: want a finite number above 0", o.Gamma)
	case !isSize(o.MinLR) || o.MinLR > o.LR:
		return fmt.Errorf("MinLR is %v: want a number from 0 to LR, %v", o.MinLR, o.LR)
	case name == "cosine" && o.TotalSteps <= o.WarmupSteps:
		return fmt.Errorf("TotalSteps is %d: want more than the %d of the warm-up", o.TotalSteps, o.WarmupSteps)
	case name == "step" && o.StepSize == 0 && o.TotalSteps <= o.WarmupSteps:
		return fmt.Errorf("StepSize is 0 and TotalSteps %d: want one of them, the total above the %d of the warm-up", o.TotalSteps, o.WarmupSteps)
	}
	return nil
}
