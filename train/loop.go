package train

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"penstock.example/data"
	"penstock.example/group"
	"penstock.example/internal/arg"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/schedule"
)

// Loop trains a pipe's model. Pipe, Optimizer, Loss and Loader are needed and stay the caller's;
// zero values of the rest are defaults. A Loop is for one goroutine.
type Loop struct {
	Pipe      *pipe.Pipe
	Optimizer optim.Optimizer
	Loss      nn.Loss
	Loader    *data.Loader

	// LRSchedule gives the learning rate of each step, counted from 0. Nil leaves the optimizer's as
	// it is.
	LRSchedule optim.Schedule
	// ClipNorm is the greatest norm that the gradients of all stages together may have; larger ones
	// are scaled down to it. 0 is no limit.
	ClipNorm float64

	// Scaler chooses the factor of the loss, for forwards in float16 (torch.AutocastFloat16). A step whose
	// gradients are not finite updates nothing, and counts. Nil is none. Run updates it.
	Scaler *optim.Scaler

	// Accumulate is the number of batches of an update; 0 is 1. Their gradients are added up. A step is
	// all of them: a mean counts all rows, LRSchedule and Steps count updates. The last update of an
	// epoch takes the batches that are left. Each batch runs in the memory that it takes alone.
	//
	// If Chunks divides the rows of every batch, parameters and running statistics are those of one
	// large batch with Accumulate times as many Chunks, to the bit. Deferred batch norm and replicas are
	// exceptions, and the last digits of the loss may differ.
	Accumulate int

	// Steps and Epochs are the steps and epochs after which the run ends, whichever comes first. They
	// include those before a resumed run began. 0 is no limit.
	Steps  int64
	Epochs int

	// Validation is evaluated at the end of each epoch, before OnEpoch, and where Steps ends the run. Nil is
	// none.
	Validation *Validation

	// Best is the best validation so far, nil before the first, and Step the number of steps taken. Run
	// updates them. A resumed run begins with the checkpoint's Best, Step and Scaler.
	Best *Best
	Step int64

	// OnStep is called in order after each step, OnEpoch after the last step of each epoch, before
	// the first of the next. Their error ends the run. Between steps nothing runs: a hook may save,
	// evaluate, and read memory.
	OnStep  []Hook
	OnEpoch func(epoch int) error

	batches []data.Batch  // of the step that is read, runs, or has failed and is to be taken again
	from    data.Position // of the first of them
}

// Hook is told of a step that was taken.
type Hook func(StepInfo) error

// Every calls f at every n-th step.
func Every(n int64, f Hook) Hook {
	return func(s StepInfo) error {
		if s.Step%n != 0 {
			return nil
		}
		return f(s)
	}
}

// StepInfo describes a step that was taken.
type StepInfo struct {
	Step             int64 // counted from 1
	Epoch            int   // counted from 0
	Loss             float64
	LR               float64
	GradNorm         float64 // before clipping; 0 without ClipNorm
	Samples          int
	Duration         time.Duration // from asking for the batches to the end of the update
	SamplesPerSecond float64
	// Peak is the most bytes live during the step, by device, in the order of Pipe.Devices
	Peak     []int64
	Timeline *schedule.Timeline // when the pipe records, of the last batch
}

// Result says how a run ended.
type Result struct {
	Step        int64
	Interrupted bool // by the context, before Steps and Epochs
	Stopped     bool // by Validation.Patience
}

// ErrDiverged ends a run whose loss is not a finite number. The step that gave it changes no
// parameter.
var ErrDiverged = errors.New("the loss is not a finite number; lower the learning rate or clip the gradients")

// StepError is the failure of a step. The step, counted from 1, was not taken: model and optimizer
// are as before it, to the bit, and can be saved.
type StepError struct {
	Step int64
	Err  error
}

// Half reports whether the update broke off after some parameters had changed
// (pipe.UpdateError.Half). Model and optimizer are then in no state to save or to go on from.
func (e *StepError) Half() bool {
	var update *pipe.UpdateError
	return errors.As(e.Err, &update) && update.Half
}

func (e *StepError) Error() string { return fmt.Sprintf("train: step %d: %v", e.Step, e.Err) }

func (e *StepError) Unwrap() error { return e.Err }

// Progress is where the run stands, for Store.Save. After a failed step it is before that step's
// batches. Do not call it during a step.
func (l *Loop) Progress() Progress {
	p := Progress{Step: l.Step, Position: l.position(), Best: l.Best}
	if l.Scaler != nil {
		p.Scaler = new(*l.Scaler)
	}
	return p
}

func (l *Loop) position() data.Position {
	if len(l.batches) > 0 {
		return l.from
	}
	return l.Loader.Position()
}

// next returns the batches of the next step: a failed step's again, or the loader's next. After an error
// the batches that were read are kept.
func (l *Loop) next(ctx context.Context) ([]data.Batch, error) {
	for {
		at, n := l.Loader.Position(), len(l.batches)
		if n >= max(l.Accumulate, 1) || n > 0 && at.Batch == l.Loader.Batches() {
			return l.batches, ctx.Err()
		}
		batch, err := l.Loader.Next(ctx)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			l.from = at
		}
		l.batches = append(l.batches, batch)
	}
}

// Run takes steps until Steps or Epochs are reached, Validation ends it, a step or a hook fails, or ctx
// ends. In the last case the running step is finished, and Run returns a Result with Interrupted set and
// no error. The failure of a step is a *StepError. The run is then as before that step, running
// statistics included, unless StepError.Half is true. Run called again repeats the step with the same
// batch, and ends with the bits of a run without failures. After any other error the run stands between
// two steps as well. Run takes no step if Check fails.
//
// With a pipe of several processes each of them has a Loop, and calls Run at the same step. When ctx
// has ended in one of them, all end after the same step.
//
// Every step leaves exactly as many bytes live on each device as the one before; gradients exist
// only within a step.
func (l *Loop) Run(ctx context.Context) (r Result, err error) {
	if err = l.Check(); err == nil {
		r, err = l.run(ctx)
	}
	r.Step = l.Step
	if l.Pipe.Config().Group == nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		r.Interrupted, err = true, nil
	}
	return r, err
}

func (l *Loop) run(ctx context.Context) (Result, error) {
	g, between := l.Pipe.Config().Group, ctx
	if g != nil { // all end at the same step, and none before it
		between = context.WithoutCancel(ctx)
	}
	for {
		at := l.position()
		switch {
		case l.Epochs > 0 && at.Epoch >= l.Epochs:
			return Result{}, nil
		case l.Steps > 0 && l.Step >= l.Steps:
			return Result{}, l.failGroup("after the last step", l.validate(between, at))
		case l.stopped():
			return Result{Stopped: true}, nil
		}
		start := time.Now()
		interrupted, err := group.Meet(context.Background(), g, "train: whether to go on", ctx.Err() != nil,
			nil)
		if err != nil {
			return Result{}, fmt.Errorf("train: step %d: %w", l.Step+1, err)
		}
		if slices.Contains(interrupted, true) {
			return Result{Interrupted: true}, nil
		}
		if at.Batch == l.Loader.Batches() {
			if err := l.endEpoch(between, at); err != nil {
				return Result{}, l.failGroup("after an epoch", err)
			}
			continue
		}
		batches, err := l.next(between)
		if err != nil {
			return Result{}, l.failGroup("loading a batch", fmt.Errorf("train: step %d: %w", l.Step+1, err))
		}
		info, err := l.takeStep(context.WithoutCancel(ctx), batches)
		if err != nil {
			return Result{}, &StepError{l.Step + 1, err}
		}
		l.batches = nil
		l.Step++
		info.Step, info.Epoch, info.Duration = l.Step, at.Epoch, time.Since(start)
		info.SamplesPerSecond = float64(info.Samples) / info.Duration.Seconds()
		for _, hook := range l.OnStep {
			if err := hook(info); err != nil {
				return Result{}, l.failGroup("after a step", err)
			}
		}
	}
}

// endEpoch validates, goes on to the next epoch, and calls OnEpoch. Until the validation is complete the run
// stands at the epoch's end, so that the validation is neither lost nor done twice.
func (l *Loop) endEpoch(ctx context.Context, at data.Position) error {
	if err := l.validate(ctx, at); err != nil {
		return err
	}
	if _, err := l.Loader.Next(ctx); err != io.EOF {
		return err
	}
	if l.OnEpoch == nil {
		return nil
	}
	return l.OnEpoch(at.Epoch)
}

// takeStep takes one step. After an error running statistics are as before.
func (l *Loop) takeStep(ctx context.Context, batches []data.Batch) (info StepInfo, err error) {
	for _, d := range l.Pipe.Devices() {
		d.ResetPeak()
	}
	restore := nn.CopyBuffers(nn.Buffers(l.Pipe.Model()))
	defer func() {
		if err != nil {
			restore()
			nn.ZeroGrads(l.Pipe.Model())
		}
	}()
	if l.LRSchedule != nil {
		l.Optimizer.SetLR(l.LRSchedule(int(l.Step)))
	}
	info = StepInfo{LR: l.Optimizer.LR()}
	for _, b := range batches {
		info.Samples += b.Rows
	}
	place := pipe.Batch{Step: l.Step, TotalRows: int64(info.Samples)}
	if l.Scaler != nil {
		place.LossScale = l.Scaler.Factor()
	}
	for i, batch := range batches {
		place.Accumulate = i < len(batches)-1
		result, err := l.gradients(ctx, batch, place)
		if err != nil {
			return info, err
		}
		info.Loss, info.Timeline = info.Loss+result.Loss, result.Timeline
		if math.IsNaN(info.Loss) || math.IsInf(info.Loss, 0) {
			return info, fmt.Errorf("loss %v: %w", info.Loss, ErrDiverged)
		}
		place.FirstMicroBatch += l.Pipe.MicroBatches(int64(batch.Rows))
	}
	if info.GradNorm, err = l.update(ctx); err != nil {
		return info, fmt.Errorf("updating the parameters: %w", err)
	}
	info.Peak = l.Pipe.Peaks()
	return info, nil
}

// failGroup tells the other processes of a failure that they cannot know of, and returns it.
func (l *Loop) failGroup(action string, err error) error {
	if g := l.Pipe.Config().Group; g != nil && err != nil {
		g.Fail(group.FailedError{Stage: -1, MicroBatch: -1, Action: action, Message: err.Error()})
	}
	return err
}

// update steps the optimizer on all stages. It returns the gradients' norm before clipping, or 0 if
// they are not clipped, or not finite and dropped.
func (l *Loop) update(ctx context.Context) (norm float64, err error) {
	updated := true
	switch {
	case l.Scaler != nil:
		norm, updated, err = l.Pipe.UpdateScaled(ctx, l.Optimizer, l.Scaler, l.ClipNorm)
	case l.ClipNorm > 0:
		norm, err = l.Pipe.UpdateClipped(ctx, l.Optimizer, l.ClipNorm)
	default:
		err = l.Pipe.Update(ctx, l.Optimizer)
	}
	if l.ClipNorm == 0 || !updated { // the norm is then no number
		norm = 0
	}
	return norm, err
}

// gradients runs a batch through the pipe, at its place in the step. The batch's tensors live on the
// first and the last device, and are gone when it returns: the update finds their memory free.
func (l *Loop) gradients(ctx context.Context, batch data.Batch, b pipe.Batch) (pipe.Result, error) {
	free, err := l.place(&b, batch)
	defer free()
	if err != nil {
		return pipe.Result{}, l.failGroup("placing a batch", fmt.Errorf("placing the batch: %w", err))
	}
	return l.Pipe.Step(ctx, b, l.Loss)
}

// Check returns an error if Run would take no step: an epoch's last batch has fewer rows than there are
// replicas, and Steps does not end the run before it.
func (l *Loop) Check() error {
	each, rows := max(l.Accumulate, 1), l.Loader.LastBatch()
	updates := int64((l.Loader.Batches() + each - 1) / each)
	if l.Pipe.MicroBatches(int64(rows)) > 0 || l.Steps > 0 && l.Steps < updates {
		return nil
	}
	return &arg.ConfigError{Of: "train", Field: "Replicas", Value: l.Pipe.Config().Replicas,
		Problem: fmt.Sprintf("an epoch's last batch has %d rows", rows),
		Remedy:  fmt.Sprintf("want %d, or another batch size", rows)}
}
