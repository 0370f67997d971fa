package main

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"

	"penstock.example/pipe"
	"penstock.example/planner"
	"penstock.example/torch"
	"penstock.example/train"
)

// failedError is an error that ended a run which could take steps.
type failedError struct {
	err  error
	kept string // what there is to go on from; "" without --out
	more bool   // whether to go on with the same flags is of use
}

func (e *failedError) Error() string { return e.err.Error() }

func (e *failedError) Unwrap() error { return e.err }

// keep saves where a failed run stands. A step that failed left it as before the step. A run that
// diverged, or that a step left half done, is not saved: the last checkpoint is then the one to go
// on from. The same holds if saving itself failed.
func (j *job) keep(failure error) error {
	noMemory := errors.Is(failure, torch.ErrOutOfMemory)
	// with the same flags it would fail again
	f := &failedError{err: failure, more: !noMemory && !errors.Is(failure, train.ErrDiverged)}
	defer func() {
		if noMemory && f.kept != "" {
			f.kept += "; change the flags as said and add --resume to go on from there"
		}
	}()
	if j.out == "" {
		return f
	}
	var within *train.StepError
	inStep := errors.As(failure, &within)
	lost := errors.Is(failure, train.ErrDiverged) || inStep && within.Half() ||
		j.group != nil && (j.group.Err() != nil || !inStep) // what fails outside of a step fails in one process
	if !lost && !j.unsaved && j.loop.Step > 0 {
		path, err := j.save()
		if path != "" {
			f.kept, j.together = keptAt(j.loop.Step, path), true
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

// keptAt says where a step is saved; "" if it is not.
func keptAt(step int64, path string) string {
	if path == "" {
		return ""
	}
	return fmt.Sprintf("step %d is saved in %s", step, path)
}

// wrongInput is err as a usage error: the data, the checkpoint or another process is not what the command line
// says, and the same run would fail again. What the system could not do, such as reading from a server that
// does not answer, stays as it is, as do lack of memory and nil.
func wrongInput(err error) error {
	var errno syscall.Errno
	missing := errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)
	if err == nil || errors.Is(err, torch.ErrOutOfMemory) || errors.As(err, &errno) && !missing {
		return err
	}
	return &usageError{err}
}

// overLimit is err as a usage error if a run that has not begun does not fit into --memory-limit: it would not
// the next time. Lack of the system's memory, other errors and nil stay as they are.
func overLimit(err error) error {
	var planned *planner.MemoryError
	var measured *torch.MemoryError
	if errors.As(err, &planned) || errors.As(err, &measured) && measured.Limit > 0 {
		return &usageError{err}
	}
	return err
}

// Remedies for lack of memory, by what did not fit.
const (
	remedyForModel  = "more --stages, or a larger --memory-limit"
	remedyForTiming = "more --chunks, a --balance, which spares timing the layers, or a larger --memory-limit"
	remedyForBatch  = "a smaller --batch, or a larger --memory-limit"
	remedyForStep   = "more --chunks, --checkpoint always, more --stages, or a larger --memory-limit"
	// with --checkpoint always already
	remedyForStepAlways = "more --chunks, more --stages, or a larger --memory-limit"
	remedyForUpdate     = remedyForModel
	remedyForPlan       = remedyForModel
	remedyForTest       = "more --chunks, more --stages, or a larger --memory-limit"
)

// remedyInStep is the remedy for lack of memory in a step.
func (j *job) remedyInStep(err error) string {
	var step *train.StepError
	switch {
	case errors.As(err, &step) && step.Part == train.Placing:
		return remedyForBatch
	case errors.As(err, &step) && step.Part == train.Updating:
		return remedyForUpdate
	case !slices.ContainsFunc(j.policy, func(k pipe.Checkpoint) bool { return k != pipe.Always }):
		return remedyForStepAlways
	}
	return remedyForStep
}

// withLimit names the limit that will do, if the error says which stages need how much. For any
// other lack of memory it is withFlags.
func withLimit(err error, remedy string) error {
	var short *planner.MemoryError
	if !errors.As(err, &short) {
		return withFlags(err, remedy)
	}
	least, more := short.Least(), "more --chunks, more --stages, or an --optimizer with less state"
	if short.OneLayer() {
		more = "more --chunks, or an --optimizer with less state; more --stages do not help a device of one layer"
	}
	return &remedyError{err, fmt.Sprintf("%s; the least that will do is --memory-limit %d (%s), or use %s", short.Shortages(), least, formatBytes(least), more)}
}

// withFlags adds a remedy to lack of memory, in flags instead of the library's words. Other errors,
// and nil, stay as they are.
func withFlags(err error, remedy string) error {
	if !errors.Is(err, torch.ErrOutOfMemory) {
		return err
	}
	text := err.Error()
	var short *planner.MemoryError
	var located *pipe.Error
	var update *pipe.UpdateError
	if errors.As(err, &short) && short.OneLayer() {
		remedy = strings.Replace(remedy, "more --stages, or ", "", 1)
	}
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
	return &remedyError{err, text + "; use " + remedy}
}

// remedyError is an error with another text.
type remedyError struct {
	error
	text string
}

func (e *remedyError) Error() string { return e.text }

func (e *remedyError) Unwrap() error { return e.error }
