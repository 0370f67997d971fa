package pipe

import (
	"errors"
	"fmt"

	"penstock/schedule"
	"penstock/torch"
)

// Error is the failure of an action in a run, with its stage, micro-batch and layer.
type Error struct {
	Stage, MicroBatch int
	Layer             string        // full dotted name; "loss" for the loss; "" when no layer was running
	Direction         schedule.Kind // of the action
	Err               error         // *torch.Error, *PanicError or ErrGoexit
}

// Error gives where it failed, the cause and, if there is one, the remedy.
func (e *Error) Error() string {
	s := fmt.Sprintf("pipe: stage %d, micro-batch %d", e.Stage, e.MicroBatch)
	if e.Layer != "" {
		s += fmt.Sprintf(", layer %q", e.Layer)
	}
	s += fmt.Sprintf(", %v: %v", e.Direction, e.Err)
	if errors.Is(e.Err, torch.ErrOutOfMemory) {
		s += "; use more chunks, checkpoint policy always, more stages, or a higher limit"
	}
	return s
}

// Unwrap is the cause.
func (e *Error) Unwrap() error { return e.Err }

// PanicError is a panic of a user's layer or loss, with its stack.
type PanicError = torch.PanicError

// ErrGoexit says that a layer ended the worker's goroutine with runtime.Goexit. The worker is
// replaced.
var ErrGoexit = errors.New("a layer called runtime.Goexit")

// cause makes an error of what recover returned. Nil means that the goroutine ended with
// runtime.Goexit.
func cause(recovered any) error {
	if recovered == nil {
		return ErrGoexit
	}
	return torch.Caught(recovered)
}
