package pipe

import (
	"errors"
	"fmt"
	"runtime"

	"penstock/schedule"
	"penstock/torch"
)

// Error is the failure of a task of a run, with its coordinates.
type Error struct {
	Stage, MicroBatch int
	Layer             string        // full dotted name; "loss" for the loss; "" when no layer was running
	Direction         schedule.Kind // Forward, Recompute, Backward, Activation or Gradient
	Err               error         // *torch.Error, *PanicError or ErrGoexit
}

// Error gives coordinates, cause and, where there is one, the remedy.
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

// PanicError is a panic of a user's layer or loss.
type PanicError struct {
	Value any
	Stack []byte
}

// Error is the panic's value and stack.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v\n%s", e.Value, e.Stack) }

// Unwrap is the panic's value where that is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// ErrGoexit says that a layer ended the worker's goroutine with runtime.Goexit. The worker is replaced.
var ErrGoexit = errors.New("a layer called runtime.Goexit")

// cause makes an error of what recover returned; nil is a Goexit.
func cause(recovered any) error {
	switch r := recovered.(type) {
	case nil:
		return ErrGoexit
	case *torch.Error:
		return r
	default:
		stack := make([]byte, 16<<10)
		return &PanicError{Value: r, Stack: stack[:runtime.Stack(stack, false)]}
	}
}
