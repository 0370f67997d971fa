package train

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"penstock/data"
	"penstock/nn"
	"penstock/optim"
	"penstock/pipe"
	"penstock/schedule"
)

// Loop trains a pipe's model. Pipe, Optimizer, Loss and Loader are needed and stay the caller's; zero values of the rest are defaults. A Loop is for one goroutine.
type Loop struct {
	Pipe      *pipe.Pipe
	Optimizer optim.Optimizer
	Loss      nn.Loss
	Loader    *data.Loader

	// Schedule gives the learning rate of each step, counted from 0. Nil leaves the optimizer's as it is.
	Schedule optim.Schedule
	// ClipNorm is the greatest norm that the gradients of all stages together may have; larger ones are scaled down to it. 0 is no limit.
	ClipNorm float64

	// Steps and Epochs end the run, whichever comes first, once Step steps and so many epochs are done in total, counting those before a resumed run
	// began. 0 is no limit.
	Steps  int64
	Epochs int

	// Step is the number of steps taken. It starts at that of the checkpoint in a resumed run, and Run counts it up.
	Step int64

	// OnStep is called in order after each step, OnEpoch after the last step of each epoch, before the first of the next. Their error ends the run.
	// Between steps all is settled: a hook may save, evaluate, and read memory.
	OnStep  []Hook
	OnEpoch func(epoch int) error
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
	Duration         time.Duration // from asking for the batch to the end of the update
	SamplesPerSecond float64
	Peak             []int64            // most bytes live during the step, by device, in the order of Pipe.Devices
	Timeline         *schedule.Timeline // when the pipe records
}

// Result says how a run ended.
type Result struct {
	Step        int64
	Interrupted bool // by the context, before Steps and Epochs
}

// ErrDiverged is what a loss that is not a finite number ends a run with. The step that gave it changes no parameter.
var ErrDiverged = errors.New("the loss is not a finite number; lower the learning rate or clip the gradients")

// Part is a part of a step, in the order in which they follow each other.
type Part int

const (
	Placing   Part = iota // the batch on its devices
	Computing             // the gradients
	Updating              // the parameters
)

// StepError is the failure of a step that was begun. Step, counted from 1, is not among those taken. Running statistics may be between two steps, and with Updating the
// parameters as well: what is then in memory is no state to save.
type StepError struct {
	Step int64
	Part Part
	Err  error
}

func (e *StepError) Error() string { return fmt.Sprintf("train: step %d: %v", e.Step, e.Err) }

func (e *StepError) Unwrap() error { return e.Err }

// Progress is where the run stands, for Store.Save. Not to be called during a step.
func (l *Loop) Progress() Progress { return Progress{Step: l.Step, Position: l.Loader.Position()} }

// Run takes steps until Steps or Epochs are reached, a step or a hook fails, or ctx ends. In the last case the running step is finished, so that the run can be
// saved and resumed, and Run returns a Result with Interrupted set and no error. A step that fails is a *StepError; after any other error the run stands between two
// steps and can be saved as well.
//
// Every step leaves exactly as many bytes live on each device as the one before; gradients exist only within a step. After an error in a step
// the parameters are as before it, unless the error came from the update itself; running statistics may have moved.
func (l *Loop) Run(ctx context.Context) (Result, error) {
	for {
		if l.Steps > 0 && l.Step >= l.Steps || l.Epochs > 0 && l.Loader.Position().Epoch >= l.Epochs {
			return Result{Step: l.Step}, nil
		}
		epoch := l.Loader.Position().Epoch
		start := time.Now()
		batch, err := l.Loader.Next(ctx)
		switch {
		case err == io.EOF:
			if l.OnEpoch != nil {
				err = l.OnEpoch(epoch)
			} else {
				err = nil
			}
			if err != nil {
				return Result{Step: l.Step}, err
			}
			continue
		case err != nil && ctx.Err() != nil:
			return Result{Step: l.Step, Interrupted: true}, nil
		case err != nil:
			return Result{Step: l.Step}, fmt.Errorf("train: step %d: %w", l.Step+1, err)
		}

		info, part, err := l.take(context.WithoutCancel(ctx), batch)
		if err != nil {
			return Result{Step: l.Step}, &StepError{l.Step + 1, part, err}
		}
		l.Step++
		info.Step, info.Epoch = l.Step, epoch
		info.Duration = time.Since(start)
		info.SamplesPerSecond = float64(info.Samples) / info.Duration.Seconds()
		for _, hook := range l.OnStep {
			if err := hook(info); err != nil {
				return Result{Step: l.Step}, err
			}
		}
	}
}

// take takes one step. After an error part is the one that failed.
func (l *Loop) take(ctx context.Context, batch data.Batch) (info StepInfo, part Part, err error) {
	devices := l.Pipe.Devices()
	for _, d := range devices {
		d.ResetPeak()
	}
	defer nn.ZeroGrads(l.Pipe.Model())
	if l.Schedule != nil {
		l.Optimizer.SetLR(l.Schedule.LR(int(l.Step)))
	}
	info = StepInfo{LR: l.Optimizer.LR(), Samples: batch.Rows}

	result, part, err := l.gradients(ctx, batch)
	if err != nil {
		return info, part, err
	}
	info.Loss, info.Timeline = result.Loss, result.Timeline
	if math.IsNaN(info.Loss) || math.IsInf(info.Loss, 0) {
		return info, Computing, fmt.Errorf("loss %v: %w", info.Loss, ErrDiverged)
	}
	if info.GradNorm, err = l.update(ctx); err != nil {
		return info, Updating, err
	}
	for _, d := range devices {
		info.Peak = append(info.Peak, d.Memory().Peak)
	}
	return info, Updating, nil
}

// gradients runs a batch through the pipe. The batch's tensors live on the first and the last device, and are gone when it returns: the update finds their
// memory free.
func (l *Loop) gradients(ctx context.Context, batch data.Batch) (result pipe.Result, part Part, err error) {
	b, free, err := l.place(batch)
	defer free()
	if err != nil {
		return result, Placing, fmt.Errorf("placing the batch: %w", err)
	}
	b.Step = l.Step
	result, err = l.Pipe.Step(ctx, b, l.Loss)
	return result, Computing, err
}
