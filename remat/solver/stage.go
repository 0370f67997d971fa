package solver

import (
	"context"
	"fmt"

	"penstock/internal/arg"
	"penstock/remat"
)

// Stage is a stage of a pipeline that has several micro-batches in flight. First come all forwards,
// which are the operations before the loss, of micro-batches 0, 1, .. one after the other; then, in
// the same order, the operations of each from the loss on. In between, a micro-batch holds what is
// there before the loss, without x(L) unless that is a part of X(L): x(L) is what leaves the stage.
// What the stage has of a micro-batch is gone when its backward is through, save for the gradients
// of parameters, which the backward of micro-batch 0 makes and the others add to.
type Stage struct {
	// First is the chain of micro-batch 0, Later of all others. Later's WeightGradient are 0: what
	// First says is there by then, and part of every moment after micro-batch 0.
	First, Later remat.Chain
	// MicroBatches is how many there are, 1 or more.
	MicroBatches int
	// Limit is the most bytes that may be there at any moment, of all micro-batches together; 0 is
	// none.
	Limit int64
}

// StagePlan is what is to be done for each micro-batch of a stage.
type StagePlan struct {
	// Feasible says that there are plans that stay under the limit. If none were found,
	// MicroBatches is empty and Peak is the least limit for which they would have been.
	Feasible bool
	Limit    int64
	Peak     int64   // bytes, of all micro-batches together
	Time     float64 // microseconds, the sum of all micro-batches'
	// LowerBound is a time that no plans under the limit can be below.
	LowerBound float64
	// MicroBatches are the plans. Their peaks are their own, without what the others hold, and
	// their limits what those leave them, before the loss or from it on, whichever is more.
	MicroBatches []remat.Plan
}

// Check returns an error unless the stage makes sense.
func (s Stage) Check() error {
	if err := s.First.Check(); err != nil {
		return fmt.Errorf("%w (of the stage's first micro-batch)", err)
	}
	if err := s.Later.Check(); err != nil {
		return fmt.Errorf("%w (of the stage's later micro-batches)", err)
	}
	for i, l := range s.Later.Layers {
		if l.WeightGradient != 0 {
			return fmt.Errorf("remat: layer %d of the stage's later micro-batches makes %d bytes of gradients of parameters; want 0, as they are there after the first", i, l.WeightGradient)
		}
	}
	switch {
	case s.MicroBatches < 1:
		return fmt.Errorf("remat: a stage with %d micro-batches; want 1 or more", s.MicroBatches)
	case s.Limit < 0:
		return fmt.Errorf("remat: a stage with a limit of %d bytes; want 0 for none, or more", s.Limit)
	}
	for _, c := range []remat.Chain{s.First, s.Later} {
		if all := newSide(c).everything(); all > remat.MaxBytes/int64(s.MicroBatches) {
			return fmt.Errorf("remat: a stage with %d micro-batches of %d bytes; want at most %d together", s.MicroBatches, all, int64(remat.MaxBytes))
		}
	}
	return nil
}

// Stages of so few layers get more slots by default: their tables take milliseconds, and what is
// gained with one micro-batch's is gained with all.
const smallStage, smallStageSlots = 128, 2000

// SolveStage finds a plan for every micro-batch of a stage, so that no moment exceeds the limit and
// the time of all is short. With one micro-batch it is [Solve]. Otherwise, what a micro-batch holds
// while it waits is what others lack: how much each may hold is found by dynamic programming over
// levels of bytes, each micro-batch's plan in the bytes that this leaves by the recurrence (see
// spine.go), and in the end the bytes that are left over, one micro-batch after the other.
//
// It returns an error for a stage that makes no sense, and ctx.Err() when ctx ends first.
func SolveStage(ctx context.Context, s Stage, o Options) (StagePlan, error) {
	if err := arg.Context(ctx, "remat"); err != nil {
		return StagePlan{}, err
	}
	if err := s.Check(); err != nil {
		return StagePlan{}, err
	}
	if o.Slots == 0 && s.MicroBatches > 1 && len(s.First.Layers) <= smallStage {
		o.Slots = smallStageSlots
	}
	o, err := o.withDefaults()
	if err != nil {
		return StagePlan{}, err
	}
	if s.MicroBatches == 1 {
		p, err := Solve(ctx, s.First, s.Limit, o)
		result := StagePlan{Feasible: p.Feasible, Limit: p.Limit, Peak: p.Peak, Time: p.Time, LowerBound: p.LowerBound}
		if p.Feasible {
			result.MicroBatches = []remat.Plan{p}
		}
		return result, err
	}
	f := newMicroBatches(s)
	if plain := f.plain(); s.Limit == 0 || f.peak(plain) <= s.Limit {
		return f.result(plain, 0), nil
	}
	return f.solve(ctx, o)
}
