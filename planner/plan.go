package planner

import (
	"math"
	"slices"

	"penstock/remat"
	"penstock/schedule"
)

// Plan is all that a pipe does in a step of so many micro-batches. It is plain data and may be
// wrong: [Plan.Check] says whether it can run. What several goroutines read must not be changed.
type Plan struct {
	Program *schedule.Program // of a whole step
	Stages  []StagePlan
}

// MicroBatches is how many the plan is for; 0 without a program.
func (p *Plan) MicroBatches() int {
	if p.Program == nil {
		return 0
	}
	return p.Program.MicroBatches
}

// StagePlan is what a stage does.
type StagePlan struct {
	Device string // such as "cpu:0"
	Layers int    // of the model
	Policy Policy
	// Units is the number of layers in each unit, a loss that ends the last stage counted as one
	// where the policy is Optimal. Other policies have one unit: nil. The first Prologue units have
	// no backward and run once.
	Units    []int
	Prologue int
	// MicroBatches is what is done with each micro-batch.
	MicroBatches []MicroBatch

	// Predicted, where the policy is Optimal; 0 elsewhere. Sizes are bytes of the device, times
	// microseconds of all micro-batches together.
	Limit      int64   // 0 is none
	Base       int64   // there whatever is recomputed
	Peak       int64   // most in a step, Base counted
	Time       float64 // of forwards, recomputations and backwards
	Once       float64 // the same without recomputation
	LowerBound float64 // no plan within the limit takes less

	Spread float64 // see Costs

	waits int64 // bytes that wait for neighbours at most, if stages run ahead
}

// MicroBatch is what a stage does with a micro-batch.
type MicroBatch struct {
	// Ops are operations on the stage's units. Those up to the loss (L) are done by the program's
	// forward, those from it up to the first backward by its recomputation, the rest by its
	// backward.
	Ops []remat.Op
	// Forward, Recompute and Backward are the predicted microseconds of the program's actions; 0 if
	// they are not known.
	Forward, Recompute, Backward float64
}

// timed predicts the times of operations by a chain, whose layers are the units without the
// prologue.
func timed(ops []remat.Op, c remat.Chain, prologue int) MicroBatch {
	out := MicroBatch{Ops: withPrologue(ops, prologue)}
	sum := func(ops []remat.Op) (t float64) {
		for _, op := range ops {
			switch op.Kind {
			case remat.Forward, remat.ForwardKeep:
				t += c.Layers[op.Layer].ForwardNoGrad
			case remat.ForwardSave:
				t += c.Layers[op.Layer].Forward
			case remat.LossStep:
				t += c.Loss.Backward
			case remat.Backward:
				t += c.Layers[op.Layer].Backward
			}
		}
		return math.Round(1000*t) / 1000
	}
	forward, again, backward := Split(ops) // to a nanosecond
	out.Forward, out.Recompute, out.Backward = sum(forward), sum(again), sum(backward)
	return out
}

// Recomputed is how many forwards of units are run again, of all micro-batches.
func (s StagePlan) Recomputed() (n int) {
	for _, m := range s.MicroBatches {
		runs := map[int]int{}
		for _, op := range m.Ops {
			if op.Kind == remat.Forward || op.Kind == remat.ForwardKeep || op.Kind == remat.ForwardSave {
				runs[op.Layer]++
			}
		}
		for _, times := range runs {
			n += times - 1
		}
	}
	return n
}

// Split parts a micro-batch's operations as the program's actions do them.
func Split(ops []remat.Op) (forward, recompute, backward []remat.Op) {
	loss := slices.Index(ops, remat.Op{Kind: remat.LossStep})
	if loss < 0 {
		return ops, nil, nil
	}
	forward, rest := ops[:loss+1], ops[loss+1:]
	first := slices.IndexFunc(rest, func(op remat.Op) bool { return op.Kind == remat.Backward })
	if first < 0 {
		first = len(rest)
	}
	return forward, rest[:first], rest[first:]
}

// recomputes says whether a stage has anything to do between the loss of a micro-batch and its
// gradient's arrival.
func (p *Plan) recomputes(stage, microBatch int) bool {
	_, again, _ := Split(p.Stages[stage].MicroBatches[microBatch].Ops)
	return len(again) > 0
}

// Fewer is the plan for its first micro-batches alone, as a batch with fewer rows has them; it
// needs no more memory.
func (p *Plan) Fewer(microBatches int) *Plan {
	if microBatches == p.Program.MicroBatches {
		return p
	}
	out := &Plan{Program: p.Program.Fewer(microBatches), Stages: slices.Clone(p.Stages)}
	for i := range out.Stages {
		s := &out.Stages[i]
		s.MicroBatches, s.Time, s.Once, s.LowerBound = s.MicroBatches[:microBatches], 0, 0, 0
	}
	return out
}

// spare is the part of a limit that is worth another plan, when so much more has become free.
const spare = 0.01

// Refit is the plan for the same problem with other memory, if it still stays within the limits and
// these do not leave much more than they did; else nil, and it is worth solving again.
func (p *Plan) Refit(now Problem) *Plan {
	out := *p
	out.Stages = slices.Clone(p.Stages)
	for i := range out.Stages {
		s, stage := &out.Stages[i], now.Stages[i]
		if s.Policy != Optimal {
			continue
		}
		base := now.base(stage)
		more := base - s.Base
		tight := s.Limit > 0 && float64(-more) > spare*float64(s.Limit)
		if stage.Memory.Limit != s.Limit || tight || s.Limit > 0 && s.Peak+more > s.Limit {
			return nil
		}
		s.Base, s.Peak = base, s.Peak+more
	}
	if out.capacity(now.Meet) != p.Program.Capacity {
		return nil
	}
	return &out
}

// capacity of links between neighbours: any number of values, or none where memory is planned and
// there is too little for all that may wait. Then stages may run ahead of each other.
func (p *Plan) capacity(meet bool) int {
	if meet {
		return schedule.Meet
	}
	for _, s := range p.Stages {
		if s.Limit > 0 && s.Peak+s.waits > s.Limit {
			return schedule.Meet
		}
	}
	return 0
}
