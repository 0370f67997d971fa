package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"penstock/pipe"
	"penstock/planner"
	"penstock/torch"
	"penstock/train"
)

// failedError is the end of a run by an error after the run could take steps.
type failedError struct {
	err  error
	kept string // what there is to go on from; "" without --out
	more bool   // whether to go on with the same flags is of use
}

func (e *failedError) Error() string { return e.err.Error() }

func (e *failedError) Unwrap() error { return e.err }

// keep saves where a run that failed stands, which a step that fails leaves as it was before. What has diverged is not saved, nor what a step has left half done: then, and if saving is what failed, the last
// checkpoint is the one to go on from.
func (j *job) keep(failure error) error {
	noMemory := errors.Is(failure, torch.ErrOutOfMemory)
	f := &failedError{err: failure, more: !noMemory && !errors.Is(failure, train.ErrDiverged)} // with the same flags it would fail again
	defer func() {
		if noMemory && f.kept != "" {
			f.kept += "; change the flags as said and add --resume to go on from there"
		}
	}()
	if j.out == "" {
		return f
	}
	var within *train.StepError
	lost := errors.Is(failure, train.ErrDiverged) || errors.As(failure, &within) && within.Half()
	if !lost && !j.unsaved && j.loop.Step > 0 {
		path, err := j.save()
		if err == nil {
			f.kept = fmt.Sprintf("step %d is saved in %s", j.loop.Step, path)
			return f
		}
		f.err = fmt.Errorf("%w; nor can step %d be saved: %w", failure, j.loop.Step, err)
	}
	steps, err := j.store().Steps()
	if err != nil || len(steps) == 0 {
		f.kept, f.more, noMemory = "there is no checkpoint in "+j.out, false, false
		return f
	}
	f.kept = fmt.Sprintf("the last checkpoint in %s is step %d", j.out, steps[len(steps)-1])
	return f
}

// What helps against want of memory, by what there was no room for.
const (
	roomForModel      = "more --stages, or a larger --memory-limit"
	roomForTiming     = "more --chunks, a --balance, which spares timing the layers, or a larger --memory-limit"
	roomForBatch      = "a smaller --batch, or a larger --memory-limit"
	roomForStep       = "more --chunks, --checkpoint always, more --stages, or a larger --memory-limit"
	roomForStepAlways = "more --chunks, more --stages, or a larger --memory-limit" // with --checkpoint always already
	roomForUpdate     = roomForModel
	roomForPlan       = roomForModel
	roomForTest       = "more --chunks, more --stages, or a larger --memory-limit"
)

// roomInStep is what helps against want of memory in a step.
func (j *job) roomInStep(err error) string {
	var step *train.StepError
	switch {
	case errors.As(err, &step) && step.Part == train.Placing:
		return roomForBatch
	case errors.As(err, &step) && step.Part == train.Updating:
		return roomForUpdate
	case !slices.ContainsFunc(j.policy, func(k pipe.Checkpoint) bool { return k != pipe.Always }):
		return roomForStepAlways
	}
	return roomForStep
}

// withLimit names the limit that will do, where the error says which stages need how much. Any other want of memory is what withRoom makes of it.
func withLimit(err error, remedy string) error {
	var short *planner.MemoryError
	if !errors.As(err, &short) {
		return withRoom(err, remedy)
	}
	least := short.Least()
	return &roomError{err, fmt.Sprintf("%s; the least that will do is --memory-limit %d (%s), or use more --chunks, more --stages, or an --optimizer with less state", short.Shortages(), least, formatBytes(least))}
}

// withRoom adds to want of memory what helps, in flags and not in the words that the library has for its callers. Other errors, and nil, stay as they are.
func withRoom(err error, remedy string) error {
	if !errors.Is(err, torch.ErrOutOfMemory) {
		return err
	}
	text := err.Error()
	var short *planner.MemoryError
	var located *pipe.Error
	var update *pipe.UpdateError
	switch { // the same in words, and nothing to have a remedy for
	case errors.As(err, &short):
		text = short.Shortages()
	case errors.As(err, &located):
		plain := *located
		plain.Err = errors.New(located.Err.Error())
		text = strings.Replace(text, located.Error(), plain.Error(), 1)
	case errors.As(err, &update):
		plain := *update
		plain.Err = errors.New(update.Err.Error())
		text = strings.Replace(text, update.Error(), plain.Error(), 1)
	}
	return &roomError{err, text + "; use " + remedy}
}

// roomError is an error in other words.
type roomError struct {
	error
	text string
}

func (e *roomError) Error() string { return e.text }

func (e *roomError) Unwrap() error { return e.error }
