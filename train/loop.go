// Package train is the loop around a pipe: batches in, updates out, hooks in between, and
// checkpoints from which a run goes on bit for bit.
//
//	loop := &train.Loop{Pipe: p, Optimizer: o, Loss: nn.CrossEntropy(), Loader: loader, Epochs: 3}
//	loop.OnStep = []train.Hook{func(s train.StepInfo) error { fmt.Println(s.Step, s.Loss); return nil }}
//	result, err := loop.Run(ctx)
//
// It does not know how a step is run (pipe), how weights are updated (optim) or where samples come
// from (data), and it prints nothing.
package train

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"penstock.example/data"
	"penstock.example/group"
	"penstock.example/internal/arg"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// Loop trains a pipe's model. Pipe, Optimizer, Loss and Loader are required and stay the caller's. The
// other fields may be zero. A Loop is for one goroutine.
type Loop struct {
	Pipe      *pipe.Pipe
	Optimizer optim.Optimizer
	Loss      nn.Loss
	Loader    *data.Loader

	LRSchedule optim.Schedule // learning rate by step, counted from 0; nil keeps the optimizer's
	Plateau    *optim.Plateau // lowers the rate when Validation's loss stops falling; may be nil
	ClipNorm   float64        // limits the norm of all stages' gradients together; 0 is no limit

	// Scaler scales the loss for forwards in float16 (torch.AutocastFloat16). A step whose gradients are
	// not finite changes no parameter, but counts as a step. Run updates the Scaler. It may be nil.
	Scaler *optim.Scaler

	// Accumulate is the number of batches in a step; 0 is 1. Their gradients are added up for one update.
	// A mean loss is over all their rows. The last step of an epoch may have fewer batches. A step needs
	// no more memory than its largest batch.
	//
	// If Chunks divides the rows of every batch, parameters and running statistics are equal, to the bit,
	// to a run with one large batch and Accumulate times as many Chunks. The loss may differ in its last
	// digits. Deferred batch norm and replicas are exceptions.
	Accumulate int

	// The run ends after Steps or Epochs, whichever comes first. Both include the time before a resume.
	// 0 is no limit.
	Steps  int64
	Epochs int

	Validation *Validation // may be nil

	// Best is the best validation so far, nil before the first. Step is the number of steps taken. Run
	// updates both. A resumed run starts with the checkpoint's Best, Step, Scaler and Plateau.
	Best *Best
	Step int64

	// OnStep is called in order after each step, OnEpoch after the last step of each epoch. An error ends
	// the run. No step runs meanwhile, so a hook may save, evaluate and read memory.
	OnStep  []Hook
	OnEpoch func(epoch int) error

	batches []data.Batch  // of the current step, or of a failed step that Run will repeat
	start   data.Position // of the first of these batches
}

// Hook is called after a step.
type Hook func(StepInfo) error

// StepInfo describes a step that was taken.
type StepInfo struct {
	Step             int64 // counted from 1
	Epoch            int   // counted from 0
	Loss             float64
	LR               float64
	GradNorm         float64 // before clipping; 0 without ClipNorm
	Samples          int
	Duration         time.Duration // including the wait for the batches
	SamplesPerSecond float64
	Peak             []int64            // peak of live bytes on each of Pipe.Devices
	Timeline         *schedule.Timeline // of the last batch, if the pipe records
}

// Result tells how a run ended.
type Result struct {
	Step        int64
	Interrupted bool // by the context, before Steps and Epochs
	Stopped     bool // by Validation.Patience
}

// ErrDiverged ends a run before its next update if the loss is not a finite number.
var ErrDiverged = errors.New("the loss is not a finite number; lower the learning rate or clip the gradients")

// StepError is the failure of a step, counted from 1. Unless Half is true, model and optimizer are as
// before the step, to the bit, and can be saved.
type StepError struct {
	Step int64
	Err  error
}

// Half reports whether the update failed after some parameters had changed (pipe.UpdateError.Half).
// Model and optimizer are then unusable.
func (e *StepError) Half() bool {
	var update *pipe.UpdateError
	return errors.As(e.Err, &update) && update.Half
}

func (e *StepError) Error() string { return fmt.Sprintf("train: step %d: %v", e.Step, e.Err) }

func (e *StepError) Unwrap() error { return e.Err }

// Progress returns the state of the run for Store.Save. After a failed step its position is before that
// step's batches. Do not call it during a step.
func (l *Loop) Progress() Progress {
	p := Progress{Step: l.Step, Position: l.position(), Best: l.Best}
	if l.Scaler != nil {
		p.Scaler = new(*l.Scaler)
	}
	if l.Plateau != nil {
		p.Plateau = new(*l.Plateau)
	}
	return p
}

func (l *Loop) position() data.Position {
	if len(l.batches) > 0 {
		return l.start
	}
	return l.Loader.Position()
}

// stepBatches returns the batches of a failed step, or reads those of the next. If it fails, the next call
// continues with the batches that were read.
func (l *Loop) stepBatches(ctx context.Context) ([]data.Batch, error) {
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
			l.start = at
		}
		l.batches = append(l.batches, batch)
	}
}

// Run takes steps until Steps, Epochs or Validation.Patience is reached, a step or a hook fails, or ctx
// ends. If ctx ends, Run finishes the running step and returns a Result with Interrupted set and no error.
//
// If a step fails the error is a *StepError. Unless StepError.Half is true, the next call of Run
// repeats the step with the same batches and ends with the bits of a run without failures. Run can
// also continue after any other error. Run takes no step if Check fails. It also takes none if a
// layer refuses micro-batches of one row and only an epoch's last batch has one.
//
// In a group each process has a Loop and calls Run at the same step. If ctx ends in one process, all end
// after the same step.
//
// Every step leaves the same number of live bytes on each device. Gradients exist only within a step.
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
	g, betweenSteps, v := l.Pipe.Config().Group, ctx, l.Validation
	if g != nil { // the members agree below on which step is the last
		betweenSteps = context.WithoutCancel(ctx)
	}
	for first := true; ; {
		at := l.position()
		switch {
		case l.Epochs > 0 && at.Epoch >= l.Epochs:
			return Result{}, nil
		case l.Steps > 0 && l.Step >= l.Steps:
			return Result{}, l.failGroup("after the last step", l.validate(betweenSteps, at))
		case v != nil && v.Patience > 0 && l.Best != nil && l.Best.Since >= v.Patience:
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
			if err := l.endEpoch(betweenSteps, at); err != nil {
				return Result{}, l.failGroup("after an epoch", err)
			}
			continue
		}
		batches, err := l.stepBatches(betweenSteps)
		if err != nil {
			return Result{}, l.failGroup("loading a batch", fmt.Errorf("train: step %d: %w", l.Step+1, err))
		}
		if first {
			if err := l.tryOneRow(betweenSteps, batches[0]); err != nil {
				return Result{}, err
			}
			first = false
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

// endEpoch validates, moves the loader to the next epoch, and calls OnEpoch. An interrupted validation
// leaves the loader at the epoch's end, so the validation is repeated.
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

// takeStep takes one step. If it fails it restores running statistics.
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
		rate := l.LRSchedule(int(l.Step))
		if l.Plateau != nil {
			rate *= cmp.Or(l.Plateau.Scale, 1)
		}
		l.Optimizer.SetLR(rate)
	}
	info = StepInfo{LR: l.Optimizer.LR()}
	b := pipe.Batch{Step: &l.Step}
	for _, batch := range batches {
		info.Samples += batch.Rows
		if len(batches) > 1 {
			b.TotalWeight += l.lossWeight(batch)
		}
	}
	if l.Scaler != nil {
		b.LossScale = l.Scaler.Factor()
	}
	for i, batch := range batches {
		b.Accumulate = i < len(batches)-1
		result, err := l.computeGradients(ctx, batch, b)
		if err != nil {
			return info, err
		}
		info.Loss, info.Timeline = info.Loss+result.Loss, result.Timeline
		if math.IsNaN(info.Loss) || math.IsInf(info.Loss, 0) {
			return info, fmt.Errorf("loss %v: %w", info.Loss, ErrDiverged)
		}
		b.FirstMicroBatch += l.Pipe.MicroBatches(int64(batch.Rows))
	}
	if info.GradNorm, err = l.update(ctx); err != nil {
		return info, fmt.Errorf("updating the parameters: %w", err)
	}
	info.Peak = l.Pipe.Peaks()
	return info, nil
}

// lossWeight returns the weight of a batch in the mean loss of a step's batches.
func (l *Loop) lossWeight(b data.Batch) (weight float64) {
	c := newCtx(torch.CPU(0))
	defer c.Close()
	c.Unlimited(func() {
		weight = nn.LossWeight(c, l.Loss, int64(b.Rows), []*torch.Tensor{tensorOf(c, b.Target)})
	})
	return weight
}

// failGroup reports a failure of this process to the others, and returns it.
func (l *Loop) failGroup(action string, err error) error {
	if g := l.Pipe.Config().Group; g != nil && err != nil {
		g.Fail(group.FailedError{Stage: -1, MicroBatch: -1, Action: action, Message: err.Error()})
	}
	return err
}

// update updates all stages. The norm is before clipping, and 0 without clipping or update.
func (l *Loop) update(ctx context.Context) (norm float64, err error) {
	if l.Scaler == nil {
		return l.Pipe.UpdateClipped(ctx, l.Optimizer, cmp.Or(l.ClipNorm, math.Inf(1)))
	}
	norm, updated, err := l.Pipe.UpdateScaled(ctx, l.Optimizer, l.Scaler, l.ClipNorm)
	if l.ClipNorm == 0 || !updated { // the Scaler skips an update if the norm is not finite
		norm = 0
	}
	return norm, err
}

// computeGradients runs a batch forward and backward. Its tensors are freed before the update.
func (l *Loop) computeGradients(ctx context.Context, batch data.Batch, b pipe.Batch) (pipe.Result, error) {
	free, err := l.placeBatch(&b, batch)
	defer free()
	if err != nil {
		return pipe.Result{}, l.failGroup("placing a batch", fmt.Errorf("placing the batch: %w", err))
	}
	return l.Pipe.Step(ctx, b, l.Loss)
}

// Check returns an error if the run would reach a batch with fewer rows than replicas. Only an epoch's
// last batch can be that small.
func (l *Loop) Check() error {
	if rows, reached := l.lastBatch(); reached && l.Pipe.MicroBatches(int64(rows)) == 0 {
		return refuseLastBatch(rows, fmt.Errorf("there are %d replicas", l.Pipe.Config().Replicas))
	}
	return nil
}

// lastBatch returns the rows of an epoch's last batch, and whether the run reaches one.
func (l *Loop) lastBatch() (rows int, reached bool) {
	accumulate := max(l.Accumulate, 1)
	epochSteps := int64((l.Loader.Batches() + accumulate - 1) / accumulate)
	return l.Loader.LastBatch(), l.Steps == 0 || l.Steps >= epochSteps
}

func refuseLastBatch(rows int, why error) error {
	return &arg.ConfigError{Of: "train", Field: "DropLast", Value: false,
		Problem: fmt.Sprintf("too few rows, %d, in an epoch's last batch: %v", rows, why),
		Remedy:  "want it set, or another batch size"}
}

// tryOneRow returns an error if only the last batch of an epoch has a micro-batch of one row, and a layer
// refuses it in a forward. Batch norm needs two values a channel.
func (l *Loop) tryOneRow(ctx context.Context, batch data.Batch) error {
	rows, reached := l.lastBatch()
	hasOneRow := func(rows int) bool { return 2*l.Pipe.MicroBatches(int64(rows)) > rows }
	if !reached || !hasOneRow(rows) || hasOneRow(l.Loader.BatchSize()) {
		return nil
	}
	defer nn.CopyBuffers(nn.Buffers(l.Pipe.Model()))()
	c := newCtx(l.Pipe.Stages()[0].Device)
	defer c.Close()
	b := pipe.Batch{Training: true, Each: func(int64, []*torch.Tensor) {}}
	err := torch.Try(func() { b.Input = pipe.Rows(c.Narrow(tensorOf(c, batch.Input), 0, 0, 1)) })
	if err == nil {
		_, err = l.Pipe.Infer(ctx, b)
	}
	if err == nil || errors.Is(err, torch.ErrOutOfMemory) { // the step has a better error for memory
		return nil
	} else if !errors.As(err, new(*torch.Error)) {
		return err
	}
	why, _, _ := strings.Cut(err.Error(), "; use ")
	return refuseLastBatch(rows, errors.New(strings.TrimPrefix(why, "pipe: ")))
}

// tensorOf copies an array to the context's device. If memory runs out it panics with *torch.Error.
func tensorOf(c *torch.Ctx, a data.Array) *torch.Tensor {
	switch a.Kind {
	case data.Float32:
		return torch.From(c, a.Float32, a.Shape...)
	case data.Int64:
		return torch.From(c, a.Int64, a.Shape...)
	case data.Uint8:
		return torch.From(c, a.Uint8, a.Shape...)
	}
	panic(fmt.Sprintf("train: a batch of %v", a.Kind))
}

// firstRows is a batch of the first n samples, from the first one again if there are fewer.
func firstRows(set data.Dataset, n int) (out data.Batch, err error) {
	indices := make([]int, n)
	for i := range indices {
		indices[i] = i % set.Len()
	}
	return out, set.Fill(&out, indices)
}

// newCtx returns a context for work outside the pipe's workers. It has one thread: OpenMP starts threads
// for each OS thread, and if there are more threads than cores, all sleep between operators.
func newCtx(d torch.Device) *torch.Ctx { return torch.NewCtx(torch.Options{Device: d, Threads: 1}) }

// endContexts returns contexts on the devices of the first and the last stage. The caller calls free.
func endContexts(p *pipe.Pipe) (first, last *torch.Ctx, free func()) {
	stages := p.Stages()
	first, last = newCtx(stages[0].Device), newCtx(stages[len(stages)-1].Device)
	return first, last, func() {
		first.Close()
		last.Close()
	}
}

// placeBatch sets input and target of b to a batch's tensors. The caller calls free, also after an error.
func (l *Loop) placeBatch(b *pipe.Batch, batch data.Batch) (free func(), err error) {
	first, last, free := endContexts(l.Pipe)
	return free, torch.Try(func() {
		b.Input = pipe.Rows(tensorOf(first, batch.Input))
		b.Target = pipe.Rows(tensorOf(last, batch.Target))
	})
}

// Validation is evaluated with the Loop's Loss at the end of each epoch, and when Steps ends the run
// within an epoch. The best checkpoint has the lowest loss. For Store to keep it, save a checkpoint
// in OnEpoch and after Run.
type Validation struct {
	Set   data.Dataset // not trained on, such as a part of data.Split
	Batch int          // samples run at once; 0 is the Loader's
	// Patience ends the run after so many whole epochs in a row without a lower loss. 0: no limit.
	Patience int

	// OnBatch is called after each batch with the number of samples done and the total. OnResult is
	// called with the result, before Loop.OnEpoch. Its error ends the run. Both may be nil.
	OnBatch  func(done, all int)
	OnResult func(ValidationInfo) error
}

// ValidationInfo is the result of a validation.
type ValidationInfo struct {
	Step  int64 // steps taken
	Epoch int   // counted from 0
	Evaluation
	Better  bool // the lowest loss so far
	Partial bool // the run ended within the epoch
}

// Best is the best validation of a run.
type Best struct {
	Step  int64   `json:"step"`
	Epoch int     `json:"epoch"` // counted from 0
	Loss  float64 `json:"loss"`
	Since int     `json:"since"`          // whole epochs since, none of them better
	Last  int64   `json:"last,omitempty"` // step of the last validation; 0 in older checkpoints
}

// validate evaluates once after the last step of an epoch, or of the run. Patience counts whole epochs
// only. next is the position of the next batch.
func (l *Loop) validate(ctx context.Context, next data.Position) error {
	v, partial := l.Validation, next.Batch < l.Loader.Batches()
	if v == nil || next.Batch == 0 || l.Best != nil && l.Best.Last == l.Step {
		return nil
	}
	e, err := Evaluate(ctx, l.Pipe, v.Set, EvaluateConfig{Batch: cmp.Or(v.Batch, l.Loader.BatchSize()),
		Loss: l.Loss, OnBatch: v.OnBatch})
	if err != nil {
		return err
	}
	if math.IsNaN(*e.Loss) || math.IsInf(*e.Loss, 0) {
		return fmt.Errorf("train: validating after step %d, in epoch %d: loss %v: %w", l.Step, next.Epoch+1,
			*e.Loss, ErrDiverged)
	}
	better := l.Best == nil || *e.Loss < l.Best.Loss
	if v.OnResult != nil {
		if err := v.OnResult(ValidationInfo{l.Step, next.Epoch, e, better, partial}); err != nil {
			return err
		}
	}
	b := Best{Step: l.Step, Epoch: next.Epoch, Loss: *e.Loss}
	if !better {
		b = *l.Best // a copy: a Progress may share the old one
		if !partial {
			b.Since++
		}
	}
	if l.Plateau != nil && !partial {
		l.Plateau.Observe(*e.Loss)
	}
	b.Last = l.Step
	l.Best = &b
	return nil
}
