package optim

import "math"

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

// MultiStep multiplies the rate by Gamma at each milestone (MultiStepLR). One that is listed twice
// counts twice.
type MultiStep struct {
	Base       float64
	Milestones []int // in any order
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
