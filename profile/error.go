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

func theSample() string { return "the sample" } // what fails before any layer

// stopped is the panic of a measurement that ends with an error.
type stopped struct{ error }

func check(err error) {
	if err != nil {
		panic(stopped{err})
	}
}

// attempt runs f and makes its panic the error of a layer, unless check has panicked.
func attempt(layer func() string, f func()) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case stopped:
			err = r.error
		default:
			err = &Error{Layer: layer(), Err: torch.Caught(r)}
		}
	}()
	f()
	return nil
}
