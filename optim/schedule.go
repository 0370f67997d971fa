package optim

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

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

// ramp goes linearly from a rate to the first rate of next (LinearLR), then follows next.
func ramp(from float64, steps int, next Schedule) Schedule {
	to := next(0)
	return func(step int) float64 {
		if step < steps {
			return from + (to-from)*float64(step)/float64(steps)
		}
		return next(step - steps)
	}
}

// oneCycle rises by half a cosine from base / start to base during the first share of the steps, and falls by
// half a cosine to base / start / final (OneCycleLR; Smith and Topin 2019). Momentum stays.
func oneCycle(base, share, start, final float64, steps int) Schedule {
	first := base / start
	top, last := share*float64(steps)-1, float64(steps-1)
	anneal := func(from, to, part float64) float64 { return to + (from-to)*(1+math.Cos(math.Pi*part))/2 }
	return func(step int) float64 {
		at := min(float64(step), last)
		if at <= top && top > 0 {
			return anneal(first, base, at/top)
		}
		return anneal(base, first/final, (at-top)/(last-top))
	}
}

// Plateau lowers the learning rate when the validation loss stops falling, as ReduceLROnPlateau does. A loss
// counts as lower if it is at least 0.01 % below the best. Its state is its fields.
type Plateau struct {
	Factor   float64 // of each drop; 0 means 0.1
	Patience int     // losses in a row that may fail to be lower; the next one causes a drop
	Lowest   float64 // least Scale
	Scale    float64 // factor of the learning rate now; 0 means 1
	Best     float64 // the lowest loss; 0 means none yet
	Bad      int     // losses since Best or the last drop
}

// Observe takes the next validation loss.
func (p *Plateau) Observe(loss float64) {
	p.Scale = cmp.Or(p.Scale, 1)
	if p.Bad++; p.Best == 0 || loss < p.Best*(1-1e-4) {
		p.Best, p.Bad = loss, 0
	}
	if p.Bad > p.Patience {
		p.Scale, p.Bad = max(p.Scale*cmp.Or(p.Factor, 0.1), p.Lowest), 0
	}
}

// ScheduleConfig describes a schedule. A zero field has PyTorch's default, if there is one.
type ScheduleConfig struct {
	LR             float64 // the highest rate, above 0
	WarmupSteps    int     // steps of a linear rise from LR/(WarmupSteps+1) to LR; not of "one-cycle"
	TotalSteps     int     // steps with the warm-up; 0 is allowed for "constant", and "step" with StepSize
	StepSize       int     // steps between drops of "step"; 0 means a third of the steps after the warm-up
	Gamma          float64 // factor of each drop of "step"; 0 means 0.1
	MinLR          float64 // last rate of "cosine" and "linear"
	Rise           float64 // share of the steps in which "one-cycle" rises; 0 means 0.3
	DivFactor      float64 // LR divided by the first rate of "one-cycle"; 0 means 25
	FinalDivFactor float64 // the first rate of "one-cycle" divided by its last; 0 means 10000
}

// schedulesWith lists the schedules that have a field.
var schedulesWith = map[string][]string{"StepSize": {"step"}, "Gamma": {"step"},
	"MinLR": {"cosine", "linear"}, "Rise": {"one-cycle"}, "DivFactor": {"one-cycle"},
	"FinalDivFactor": {"one-cycle"}}

// ScheduleNames lists the names of schedules.
func ScheduleNames() []string { return []string{"constant", "cosine", "linear", "one-cycle", "step"} }

// NewSchedule returns the named schedule: "constant"; "cosine", half a cosine from LR down to MinLR;
// "linear", a line from LR to MinLR; "one-cycle", up to LR and down again; or "step", which multiplies the
// rate by Gamma every StepSize steps.
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
	case "linear":
		s = ramp(o.LR, after, func(int) float64 { return o.MinLR })
	case "one-cycle":
		s = oneCycle(o.LR, cmp.Or(o.Rise, 0.3), cmp.Or(o.DivFactor, 25), cmp.Or(o.FinalDivFactor, 1e4), after)
	case "step":
		s = stepDecay(o.LR, cmp.Or(o.Gamma, 0.1), cmp.Or(o.StepSize, max(1, after/3)))
	}
	if o.WarmupSteps > 0 {
		s = ramp(o.LR/float64(o.WarmupSteps+1), o.WarmupSteps, s)
	}
	return s, nil
}

func (o ScheduleConfig) check(name string) (err error) {
	check := func(field string, value any, zero, valid bool, want string) {
		if has := schedulesWith[field]; has != nil && !slices.Contains(has, name) && !zero {
			valid, want = false, "want it left out; only "+strings.Join(has, ", ")+" has it"
		}
		if err == nil && !valid {
			err = &ConfigError{Of: "optim: " + name + " schedule", Field: field, Value: value, Remedy: want}
		}
	}
	factor := func(field string, x, end float64) {
		check(field, x, x == 0, isAmount(x) && x < end, fmt.Sprintf("want a number from 0 to below %v", end))
	}
	check("LR", o.LR, false, o.LR > 0 && isAmount(o.LR), "want a finite number above 0")
	check("MinLR", o.MinLR, o.MinLR == 0, isAmount(o.MinLR) && o.MinLR <= o.LR, "want a number from 0 to LR")
	check("StepSize", o.StepSize, o.StepSize == 0, o.StepSize >= 0, "want at least 0")
	factor("Gamma", o.Gamma, math.Inf(1))
	factor("Rise", o.Rise, 1)
	factor("DivFactor", o.DivFactor, math.Inf(1))
	factor("FinalDivFactor", o.FinalDivFactor, math.Inf(1))
	check("WarmupSteps", o.WarmupSteps, false, o.WarmupSteps == 0 || o.WarmupSteps > 0 && name != "one-cycle",
		"want at least 0, and 0 for one-cycle, which rises by itself")
	endless := name == "constant" || name == "step" && o.StepSize > 0
	check("TotalSteps", o.TotalSteps, false, o.TotalSteps >= 0 && (endless || o.TotalSteps > o.WarmupSteps),
		"want more steps than the warm-up, or a StepSize for the step schedule")
	return err
}
