package remat

import (
	"fmt"
	"math"
)

// Report has the costs of a plan.
type Report struct {
	Peak   int64   // bytes
	PeakOp int     // the first operation at the peak
	Time   float64 // microseconds
	// Recomputed is the number of forwards beyond each layer's first one.
	Recomputed int
	Extra      float64 // microseconds beyond [Chain.Once]
}

// Check carries out operations by the model in the package's doc, to the byte. It accepts any
// operations, and shares no code with the solver. The error is a [*ChainError], or names the first
// operation that is not allowed or missing.
//
// Memory that inputs share counts once, even if a plan recomputes one of them while another is held.
// The solver's plans never do that.
func Check(c Chain, ops []Op) (Report, error) {
	if err := c.Check(); err != nil {
		return Report{}, err
	}
	r := newReplay(c)
	report := Report{Peak: -1}
	forwards := make([]int, len(c.Layers))
	for at, o := range ops {
		took, reason := r.do(o)
		if reason != "" {
			return Report{}, fmt.Errorf("remat: operation %d, %v: %s", at, o, reason)
		}
		if took.peak > report.Peak {
			report.Peak, report.PeakOp = took.peak, at
		}
		if o.Kind.forward() {
			if forwards[o.Layer]++; forwards[o.Layer] > 1 {
				report.Recomputed++
			}
		}
		report.Time += took.time
	}
	switch n := len(c.Layers); {
	case !r.lossDone:
		return Report{}, fmt.Errorf("remat: the plan ends after %d operations: the loss has not run; "+
			"want it, and the backward of layers %d to 0", len(ops), n-1)
	case r.next >= 0:
		return Report{}, fmt.Errorf("remat: the plan ends after %d operations: the backward of layer %d "+
			"has not run; want the backward of layers %[2]d to 0", len(ops), r.next)
	}
	report.Extra = report.Time - c.Once()
	return report, nil
}

// Once returns the time of each layer's forward with gradients and backward, and of the loss.
func (c Chain) Once() float64 {
	t := c.Loss.Backward
	for _, l := range c.Layers {
		t += l.Forward + l.Backward
	}
	return t
}

// CheckPlan returns an error unless the plan is right for the chain: its operations are allowed and
// complete, its peak is exact and within the limit, its time is right to a part in 10^9, and its
// lower bound is not above its time. If it has a fingerprint, that must be the chain's.
//
// For a plan that is not feasible CheckPlan checks the fingerprint, and that the limit is below the
// plan's peak. It cannot tell whether that is the least limit.
func CheckPlan(c Chain, p Plan) error {
	if err := c.Check(); err != nil {
		return err
	}
	if have := c.Fingerprint(); p.Chain != "" && p.Chain != have {
		return fmt.Errorf("remat: the plan is for the chain %s, this one is %s; want that chain, or a new "+
			"plan", p.Chain, have)
	}
	if !p.Feasible {
		if len(p.Ops) > 0 || p.Limit == 0 || p.Peak <= p.Limit {
			return fmt.Errorf("remat: the plan is not feasible, with %d operations, a peak of %d bytes and "+
				"a limit of %d; want no operations and a limit below the peak", len(p.Ops), p.Peak, p.Limit)
		}
		return nil
	}
	report, err := Check(c, p.Ops)
	const tolerance = 1e-9 // relative: the order of summation changes times
	switch {
	case err != nil:
		return err
	case report.Peak != p.Peak || p.Limit > 0 && p.Peak > p.Limit:
		return fmt.Errorf("remat: the peak is %d bytes, at operation %d, %v; the plan says %d, under a "+
			"limit of %d", report.Peak, report.PeakOp, p.Ops[report.PeakOp], p.Peak, p.Limit)
	case !(math.Abs(report.Time-p.Time) <= tolerance*math.Max(report.Time, p.Time)): // also for NaN
		return fmt.Errorf("remat: the operations take %v microseconds; the plan says %v", report.Time, p.Time)
	case !(p.LowerBound <= p.Time*(1+tolerance)):
		return fmt.Errorf("remat: the lower bound is %v microseconds, above the plan's time of %v",
			p.LowerBound, p.Time)
	}
	return nil
}
