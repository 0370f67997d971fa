package torch

import (
	"fmt"
	"runtime"
)

// PanicError is a panic of Go code that was run, such as a layer of the user's, and no operator's failure.
type PanicError struct {
	Value any
	Stack []byte // of the goroutine that panicked, as runtime.Stack has it; what is too long is cut off
}

// Error is the panic's value. The stack is for whoever debugs the code that panicked.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Unwrap is the panic's value where that is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// Caught makes an error of what recover has returned, which is not nil: an *Error as it is, and anything else a *PanicError with the stack of the goroutine that called recover.
func Caught(p any) error {
	if e, ok := p.(*Error); ok {
		return e
	}
	stack := make([]byte, 16<<10)
	return &PanicError{Value: p, Stack: stack[:runtime.Stack(stack, false)]}
}
