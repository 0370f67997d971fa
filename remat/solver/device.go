package solver

import (
	"context"
	"fmt"

	"penstock.example/internal/arg"
	"penstock.example/remat"
)

// Device is the stages of a pipeline on one device, which share its memory, with several
// micro-batches in flight. A micro-batch is in flight on a stage from its forward, the operations
// before the loss, to its backward, the operations from the loss on. In between it holds what is
// there before the loss, without x(L) unless that is a part of X(L), because x(L) leaves the stage.
// When the backward of a micro-batch is over, only the gradients of parameters are left of it. The
// backward of micro-batch 0 makes them, and the others add to them.
type Device struct {
	Stages []Stage
	// MicroBatches is their number, 1 or more. Those from Larger on have fewer rows; 0 is none.
	MicroBatches, Larger int
	// Order is the order of all forwards and backwards. Nil is that of GPipe: all forwards, by
	// micro-batch and stage, then all backwards, by micro-batch and from the last stage to the
	// first.
	Order []Computation
	// Limit is the most bytes that may be there at any moment, of all stages and micro-batches
	// together; 0 is none.
	Limit int64
}

// Stage is a stage on a device. A stage of which nothing is trained has chains without layers: it
// holds nothing.
type Stage struct {
	// First is the chain of micro-batch 0, Later that of all others. Later has no WeightGradient:
	// those of First are there after micro-batch 0, and count in every moment from then on.
	First, Later remat.Chain
	// Fewer is the chain of the micro-batches from Device.Larger on, as Later.
	Fewer remat.Chain
	// Receives says that a later stage sends the gradient of the output, y(L), which is received
	// when what precedes the first backward has run again. Otherwise the loss is on the stage.
	Receives bool
	// Continues says that x(0) is x(L) of the stage before in Stages: the same memory. Where that
	// stage holds x(L) as a part of X(L), x(0) takes no more.
	Continues bool
}

// Computation is a forward or a backward of a micro-batch on a stage. A backward includes what runs
// again before it. One whose Stage is Between is none, but a moment between others.
type Computation struct {
	Stage, MicroBatch int
	Backward          bool
	// Waits is the bytes on the device meanwhile that no micro-batch holds, such as outputs that
	// wait to be received.
	Waits int64
	// AtLeast is the bytes that the computation takes whatever its operations take, such as those
	// of untrained layers in front of the stage's.
	AtLeast int64
}

// Between is the Stage of a moment between computations, at which micro-batches in flight hold what
// they hold, and Waits bytes are there beside.
const Between = -1

// DevicePlan is a plan for each stage and micro-batch of a device.
type DevicePlan struct {
	// Feasible says that there are plans that stay under the limit. If none were found,
	// MicroBatches is empty and Peak is the least limit for which they would have been.
	Feasible bool
	Limit    int64
	Peak     int64   // bytes, of all stages and micro-batches together
	Time     float64 // microseconds, the sum of all
	// LowerBound is a time that no plans under the limit can be below.
	LowerBound float64
	// MicroBatches are the plans, by stage and micro-batch.
	MicroBatches [][]MicroBatch
}

// MicroBatch is the plan of a micro-batch on a stage. Bytes are its own, without those of others.
type MicroBatch struct {
	Ops  []remat.Op
	Time float64 // microseconds
	// Forward is the most bytes before the loss, Held what is held until the backward begins,
	// Recompute the most from the loss to the first backward, and Backward the most from there on.
	Forward, Held, Recompute, Backward int64
}

// Check returns an error unless the device makes sense.
func (d Device) Check() error {
	switch {
	case len(d.Stages) == 0:
		return fmt.Errorf("remat: a device without stages; want at least one")
	case d.MicroBatches < 1:
		return fmt.Errorf("remat: a stage with %d micro-batches; want 1 or more", d.MicroBatches)
	case d.Larger < 0:
		return fmt.Errorf("remat: the first %d micro-batches are larger; want 0 for all, or more", d.Larger)
	case d.Limit < 0:
		return fmt.Errorf("remat: a stage with a limit of %d bytes; want 0 for none, or more", d.Limit)
	}
	for at, s := range d.Stages {
		if err := s.check(len(d.Stages)*d.MicroBatches, d.smaller()); err != nil {
			return err
		}
		if s.Continues && at == 0 {
			return fmt.Errorf("remat: the first stage of a device continues none; want Continues of later ones alone")
		}
	}
	return d.checkOrder()
}

// smaller says whether there are micro-batches of fewer rows.
func (d Device) smaller() bool { return d.Larger > 0 && d.Larger < d.MicroBatches }

func (s Stage) check(microBatches int, smaller bool) error {
	if len(s.First.Layers) == 0 && len(s.Later.Layers) == 0 {
		return nil
	}
	if err := s.First.Check(); err != nil {
		return fmt.Errorf("%w (of the stage's first micro-batch)", err)
	}
	if err := s.Later.Check(); err != nil {
		return fmt.Errorf("%w (of the stage's later micro-batches)", err)
	}
	chains := []remat.Chain{s.First, s.Later}
	if smaller {
		if err := s.Fewer.Check(); err != nil {
			return fmt.Errorf("%w (of the stage's micro-batches of fewer rows)", err)
		}
		chains = append(chains, s.Fewer)
	}
	for _, c := range chains[1:] {
		for i, l := range c.Layers {
			if l.WeightGradient != 0 {
				return fmt.Errorf("remat: layer %d of the stage's later micro-batches makes %d bytes of gradients of parameters; want 0, as they are there after the first", i, l.WeightGradient)
			}
		}
	}
	for _, c := range chains {
		if all := newSide(newTerms(c)).everything(); all > remat.MaxBytes/int64(microBatches) {
			return fmt.Errorf("remat: %d micro-batches of stages of %d bytes; want at most %d together", microBatches, all, int64(remat.MaxBytes))
		}
	}
	return nil
}

// checkOrder checks that every forward and backward is in the order once, forwards before their
// backwards, and the backward of micro-batch 0 before those of the others.
func (d Device) checkOrder() error {
	if d.Order == nil {
		return nil
	}
	k := d.MicroBatches
	done := make([]int, len(d.Stages)*k) // how many of forward and backward
	moments := 0
	for at, c := range d.Order {
		if c.Stage == Between && c.Waits >= 0 && c.Waits <= remat.MaxBytes {
			moments++
			continue
		}
		if c.Stage < 0 || c.Stage >= len(d.Stages) || c.MicroBatch < 0 || c.MicroBatch >= k || min(c.Waits, c.AtLeast) < 0 || max(c.Waits, c.AtLeast) > remat.MaxBytes {
			return fmt.Errorf("remat: computation %d of the order is %+v; want a stage below %d, a micro-batch below %d, and bytes from 0 to %d", at, c, len(d.Stages), k, int64(remat.MaxBytes))
		}
		n := &done[c.Stage*k+c.MicroBatch]
		if c.Backward != (*n == 1) || *n == 2 {
			return fmt.Errorf("remat: computation %d of the order is %+v; want each forward once, and each backward once after it", at, c)
		}
		if *n++; *n == 2 && done[c.Stage*k] < 2 {
			return fmt.Errorf("remat: computation %d of the order is %+v; want the backward of micro-batch 0 before those of others", at, c)
		}
	}
	if len(d.Order)-moments != 2*len(done) {
		return fmt.Errorf("remat: an order of %d computations; want the %d forwards and backwards", len(d.Order), 2*len(done))
	}
	return nil
}

// order is the order of all computations.
func (d Device) order() []Computation {
	if d.Order != nil {
		return d.Order
	}
	var out []Computation
	for b := range d.MicroBatches {
		for s := range d.Stages {
			out = append(out, Computation{Stage: s, MicroBatch: b})
		}
	}
	for b := range d.MicroBatches {
		for s := range d.Stages {
			out = append(out, Computation{Stage: len(d.Stages) - 1 - s, MicroBatch: b, Backward: true})
		}
	}
	return out
}

// Stages of up to smallStage layers get smallStageSlots by default. Their tables take milliseconds,
// and what one micro-batch gains all do.
const smallStage, smallStageSlots = 128, 2000

// SolveDevice finds a plan for every micro-batch of every stage on a device, so that no moment
// exceeds the limit and the time of all is short. One micro-batch of one stage is solved as [Solve]
// does.
//
// What a micro-batch holds while it waits is missing for the others in flight. The order says who
// is in flight when. Dynamic programming over levels of bytes finds how much each may hold (see
// levels.go and steady.go). The recurrence finds each micro-batch's plan in the bytes that are left
// for it (see spine.go). At last each micro-batch is planned again with what the others leave over.
//
// It returns an error for a device that makes no sense, and ctx.Err() when ctx ends first.
func SolveDevice(ctx context.Context, d Device, o Options) (DevicePlan, error) {
	return solveDevice(ctx, d, o, false)
}

// FewestDevice is SolveDevice within the least limit that it finds plans for, instead of that of d.
func FewestDevice(ctx context.Context, d Device, o Options) (DevicePlan, error) {
	d.Limit = 1
	return solveDevice(ctx, d, o, true)
}

func solveDevice(ctx context.Context, d Device, o Options, fewest bool) (DevicePlan, error) {
	if err := arg.Context(ctx, "remat"); err != nil {
		return DevicePlan{}, err
	}
	if err := d.Check(); err != nil {
		return DevicePlan{}, err
	}
	f := newMicroBatches(d)
	f.fewest = fewest
	if o.Slots == 0 && len(f.items) > 1 && f.longest() <= smallStage && !f.rough(o) {
		o.Slots = smallStageSlots
	}
	o, err := o.withDefaults()
	if err != nil {
		return DevicePlan{}, err
	}
	plain := f.plain()
	most := f.peak(plain)
	switch {
	case d.Limit == 0 || most <= d.Limit:
		return f.result(plain, 0), nil
	case f.isChain():
		return f.solveChain(ctx, o)
	}
	return f.solve(ctx, most, o)
}
