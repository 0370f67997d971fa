package torch

import (
	"fmt"
	"runtime"
)

// PanicError is a panic of Go code, such as a user's layer, that is not an operator's failure.
type PanicError struct {
	Value any
	Stack []byte // of the goroutine that panicked, as runtime.Stack gives it, cut off at 16 KiB
}

// Error returns the panic's value without the stack.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Unwrap is the panic's value where that is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// Caught makes an error of a value from recover, which is not nil. An *Error stays as it is.
// Anything else becomes a *PanicError with the stack of the calling goroutine.
func Caught(p any) error {
	if e, ok := p.(*Error); ok {
		return e
	}
	stack := make([]byte, 16<<10)
	return &PanicError{Value: p, Stack: stack[:runtime.Stack(stack, false)]}
}
