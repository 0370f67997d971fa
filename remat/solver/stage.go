package solver

import (
	"context"
	"fmt"

	"penstock/internal/arg"
	"penstock/remat"
)

// Stage is a stage of a pipeline with several micro-batches in flight. The forwards of
// micro-batches 0, 1, .. come first: those are the operations before the loss. The operations from
// the loss on follow in the same order. In between, a micro-batch holds what is there before the
// loss, without x(L) unless that is a part of X(L), because x(L) leaves the stage. When the
// backward of a micro-batch is over, only the gradients of parameters are left of it. The backward
// of micro-batch 0 makes them, and the others add to them.
type Stage struct {
	// First is the chain of micro-batch 0, Later that of all others. Later has no WeightGradient:
	// those of First are there after micro-batch 0, and count in every moment from then on.
	First, Later remat.Chain
	// MicroBatches is their number, 1 or more.
	MicroBatches int
	// Limit is the most bytes that may be there at any moment, of all micro-batches together; 0 is
	// none.
	Limit int64
}

// StagePlan is a plan for each micro-batch of a stage.
type StagePlan struct {
	// Feasible says that there are plans that stay under the limit. If none were found,
	// MicroBatches is empty and Peak is the least limit for which they would have been.
	Feasible bool
	Limit    int64
	Peak     int64   // bytes, of all micro-batches together
	Time     float64 // microseconds, the sum of all micro-batches'
	// LowerBound is a time that no plans under the limit can be below.
	LowerBound float64
	// MicroBatches are the plans. Their peaks are without what the others hold. Their limits are
	// what the others leave them, before the loss or from it on, whichever is more.
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

// Stages of up to smallStage layers get smallStageSlots by default. Their tables take milliseconds,
// and what one micro-batch gains all do.
const smallStage, smallStageSlots = 128, 2000

// SolveStage finds a plan for every micro-batch of a stage, so that no moment exceeds the limit and
// the time of all is short. With one micro-batch it is [Solve].
//
// What a micro-batch holds while it waits is missing for the others. Dynamic programming over
// levels of bytes finds how much each may hold. The recurrence finds each micro-batch's plan in the
// bytes that are left for it (see spine.go). At last each micro-batch is planned again with what
// the others leave over.
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
