package remat

import (
	"fmt"
	"math"
)

// InvalidError says which operation of a plan is the first that is not allowed.
type InvalidError struct {
	Index  int // of the operation; the number of operations where a plan ends too early
	Op     Op  // the zero Op where a plan ends too early
	Early  bool
	Reason string
}

func (e *InvalidError) Error() string {
	if e.Early {
		return fmt.Sprintf("remat: the plan ends after %d operations: %s", e.Index, e.Reason)
	}
	return fmt.Sprintf("remat: operation %d, %v: %s", e.Index, e.Op, e.Reason)
}

// Report has the costs of a plan.
type Report struct {
	Peak   int64 // bytes
	PeakOp int   // the first operation at the peak
	AtPeak Breakdown
	Time   float64 // microseconds
	Layers []Runs  // by layer
	// Recomputed is how many forwards ran beyond the first of each layer, and Extra the
	// microseconds that the plan takes beyond each layer forward with gradients and backward once.
	Recomputed int
	Extra      float64
	Peaks      []int64 // during each operation, bytes
	Resident   []int64 // after each operation
	// Held is the live bytes before the loss, without x(L) unless that is a part of X(L): the bytes of
	// a micro-batch that a stage of a pipeline holds between its forward and its backward.
	Held int64
}

// Breakdown divides the bytes during an operation. Made and Tmp are the operation's own; all others
// were held before it.
type Breakdown struct {
	Inputs          int64 // x that are held by themselves, without memory of anything saved
	Saved           int64 // X
	Gradients       int64 // y
	WeightGradients int64
	Made, Tmp       int64 // by and during the operation
}

// Total is the sum of all parts.
func (b Breakdown) Total() int64 {
	return b.Inputs + b.Saved + b.Gradients + b.WeightGradients + b.Made + b.Tmp
}

// Runs is how often a layer's forward ran.
type Runs struct {
	NoGrad, Grad int
}

// Recomputed is the runs beyond the first.
func (r Runs) Recomputed() int { return max(0, r.NoGrad+r.Grad-1) }

// Check carries out operations by the model in the package's doc, to the byte. The error is a
// [*ChainError], or an [*InvalidError] for the first operation that is not allowed or a plan that
// is not complete. It accepts any operations, and shares no code with package solver.
//
// Memory that inputs share counts once, even if a plan computes one of them again while the other is
// held. The plans of package solver never do that.
func Check(c Chain, ops []Op) (Report, error) {
	if err := c.Check(); err != nil {
		return Report{}, err
	}
	r := NewReplay(c)
	report := Report{Peak: -1, Layers: make([]Runs, len(c.Layers)), Peaks: make([]int64, 0, len(ops)), Resident: make([]int64, 0, len(ops))}
	for at, o := range ops {
		if o.Kind == LossStep {
			report.Held = r.held()
		}
		took, reason := r.Do(o)
		if reason != "" {
			return Report{}, &InvalidError{Index: at, Op: o, Reason: reason}
		}
		peak := took.Peak()
		if peak > report.Peak {
			report.Peak, report.PeakOp = peak, at
		}
		report.Peaks = append(report.Peaks, peak)
		switch o.Kind {
		case Forward, ForwardKeep:
			report.Layers[o.Layer].NoGrad++
		case ForwardSave:
			report.Layers[o.Layer].Grad++
		}
		report.Time += took.Time
		report.Resident = append(report.Resident, r.live)
	}
	if lack := r.lack(); lack != "" {
		return Report{}, &InvalidError{Index: len(ops), Early: true, Reason: lack}
	}
	for _, runs := range report.Layers {
		report.Recomputed += runs.Recomputed()
	}
	report.Extra = report.Time - c.Once()
	report.AtPeak = breakdown(c, ops[:report.PeakOp+1])
	return report, nil
}

// Once is the time of each layer's forward with gradients and backward, and the loss.
func (c Chain) Once() float64 {
	t := c.Loss.Backward
	for _, l := range c.Layers {
		t += l.Forward + l.Backward
	}
	return t
}

// breakdown is that of the last of these operations.
func breakdown(c Chain, ops []Op) Breakdown {
	r := NewReplay(c)
	last := len(ops) - 1
	for _, o := range ops[:last] {
		r.Do(o)
	}
	parts := r.parts()
	took, _ := r.Do(ops[last])
	parts.Made, parts.Tmp = took.Made, took.Tmp
	return parts
}

// held is the live bytes without x(L), unless that is a part of X(L).
func (r *Replay) held() int64 {
	last := len(r.chain.Layers)
	if r.state[last] != alone {
		return r.live
	}
	r.drop(r.x[last])
	defer r.hold(r.x[last])
	return r.live
}

// parts divides the live bytes.
func (r *Replay) parts() Breakdown {
	var b Breakdown
	counted := make([]bool, len(r.size))
	sum := func(blocks []int) (bytes int64) {
		for _, k := range blocks {
			if !counted[k] && r.holders[k] > 0 {
				bytes += r.size[k]
			}
			counted[k] = true
		}
		return bytes
	}
	for i, state := range r.state {
		if state == within {
			b.Saved += sum(r.full[i])
		}
	}
	for i := range r.state {
		b.Gradients += sum(r.y[i])
	}
	b.WeightGradients = sum(r.weights)
	b.Inputs = r.live - b.Total()
	return b
}

// lack says why a plan that ends here is not complete, or nothing.
func (r *Replay) lack() string {
	switch {
	case !r.lossDone:
		return fmt.Sprintf("the loss has not run; want it, and the backward of layers %d to 0", len(r.chain.Layers)-1)
	case r.next >= 0:
		return fmt.Sprintf("the backward of layer %d has not run; want the backward of layers %d to 0", r.next, r.next)
	}
	return ""
}

// CheckPlan returns an error unless the plan is right for the chain: its operations are allowed and
// complete, its peak is exact and not above the limit, its time is right to a part in 10^9, the
// lower bound is not above it, and the fingerprint is the chain's if there is one.
//
// Of a plan that is not feasible, it checks the fingerprint, and that the limit is below the least
// limit. A replay cannot tell whether that is the least.
func CheckPlan(c Chain, p Plan) error {
	if err := c.Check(); err != nil {
		return err
	}
	if have := c.Fingerprint(); p.Chain != "" && p.Chain != have {
		return fmt.Errorf("remat: the plan is for the chain %s, this one is %s; want the chain that it was made for, or a new plan", p.Chain, have)
	}
	if !p.Feasible {
		switch {
		case len(p.Ops) > 0:
			return fmt.Errorf("remat: the plan says that it is not feasible, and has %d operations; want none", len(p.Ops))
		case p.Limit == 0 || p.Peak <= p.Limit:
			return fmt.Errorf("remat: the plan says that it is not feasible, with %d bytes at least and a limit of %d; want a limit below them", p.Peak, p.Limit)
		}
		return nil
	}
	report, err := Check(c, p.Ops)
	switch {
	case err != nil:
		return err
	case report.Peak != p.Peak:
		return fmt.Errorf("remat: the peak is %d bytes, at operation %d, %v; the plan says %d", report.Peak, report.PeakOp, p.Ops[report.PeakOp], p.Peak)
	case p.Limit > 0 && report.Peak > p.Limit:
		return fmt.Errorf("remat: the peak is %d bytes, at operation %d, %v; that is above the plan's limit of %d", report.Peak, report.PeakOp, p.Ops[report.PeakOp], p.Limit)
	case !(math.Abs(report.Time-p.Time) <= timeTolerance*math.Max(report.Time, p.Time)): // also for NaN
		return fmt.Errorf("remat: the operations take %v microseconds; the plan says %v", report.Time, p.Time)
	case !(p.LowerBound <= p.Time*(1+timeTolerance)):
		return fmt.Errorf("remat: the lower bound is %v microseconds, above the plan's time of %v", p.LowerBound, p.Time)
	}
	return nil
}

// timeTolerance is the relative difference that the order of summation may make in times.
const timeTolerance = 1e-9
