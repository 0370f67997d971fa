package profile

import (
	"errors"
	"fmt"

	"penstock.example/torch"
)

// Error is the failure of a layer while it was measured.
type Error struct {
	Layer string // full dotted name, or "the sample"
	Err   error  // *torch.Error or *torch.PanicError
}

// Error names the layer and the cause.
func (e *Error) Error() string {
	return fmt.Sprintf("profile: measuring layer %q: %v", e.Layer, e.Err)
}

// Unwrap is the cause.
func (e *Error) Unwrap() error { return e.Err }

var errGoexit = errors.New("profile: a layer called runtime.Goexit")

// theSample is what fails before any layer.
const theSample = "the sample"

// attempt runs f and makes its panic the error of a layer.
func attempt(layer string, f func() error) (err error) {
	return attemptAt(func() string { return layer }, f)
}

// attemptAt is attempt where f says only when it panics which layer failed.
func attemptAt(layer func() string, f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &Error{Layer: layer(), Err: torch.Caught(r)}
		}
	}()
	return f()
}
