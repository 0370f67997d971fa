package torch

import (
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"strings"

	"penstock.example/internal/shim"
)

// ErrOutOfMemory is the failure of an allocation beyond a device's limit or the system's memory.
// The error found with errors.As is a *MemoryError.
var ErrOutOfMemory = errors.New("out of memory")

// ErrDeviceLost is the failure of a kernel, such as an index out of range, after which CUDA refuses
// all work of this process. CUDA reports it late, in another operator or at the end of a run.
var ErrDeviceLost = errors.New("the GPU is lost to this process")

// lost matches CUDA's messages for ErrDeviceLost.
var lost = regexp.MustCompile("device-side assert|illegal memory access|misaligned address|" +
	"illegal instruction|unspecified launch failure")

// MemoryError says which account refused an allocation and why. Sizes are bytes.
type MemoryError struct {
	Device                 Device
	Limit, Live, Requested int64
}

func (e *MemoryError) Error() string {
	if e.Limit == 0 {
		return fmt.Sprintf("out of memory on %v: the system has no more (live %d bytes, requested %d)",
			e.Device, e.Live, e.Requested)
	}
	return fmt.Sprintf("out of memory on %v: limit %d bytes, live %d, requested %d",
		e.Device, e.Limit, e.Live, e.Requested)
}

func (e *MemoryError) Is(target error) bool { return target == ErrOutOfMemory }

// Error is the failure of an operator. Operators panic with it; Try turns it into an error.
type Error struct {
	Op      string   // such as "aten::mm"; in backward "aten::mm in MmBackward0", or the node alone
	Args    []string // the tensors among the arguments, such as "float32[8,16]"
	Device  Device   // the device of the Ctx
	Message string   // libtorch's message, without its backtrace
	Err     error    // the cause, such as a *MemoryError; nil if there is only the message

	// Sequence is the autograd sequence number of the node that failed in backward.
	Sequence uint64
}

func (e *Error) Error() string {
	s := e.Op
	if len(e.Args) > 0 {
		s += "(" + strings.Join(e.Args, ", ") + ")"
	}
	if e.Err != nil {
		return s + ": " + e.Err.Error()
	}
	return s + ": " + e.Message
}

func (e *Error) Unwrap() error { return e.Err }

func (e *Error) Is(target error) bool { return target == ErrDeviceLost && lost.MatchString(e.Message) }

// Try runs f and returns the *Error with which an operator in it panicked. Other panics go on.
func Try(f func()) (err error) {
	defer func() {
		if r := recover(); r != nil {
			e, ok := r.(*Error)
			if !ok {
				panic(r)
			}
			err = e
		}
	}()
	f()
	return nil
}

// callError returns the error of a call on this context.
func (c *Ctx) callError(op string, tensors []*Tensor, e *shim.Error) *Error {
	out := &Error{Op: op, Device: c.device, Message: e.Message, Sequence: e.Sequence}
	if e.Node != "" {
		out.Op = e.Node
		if e.Op != "" {
			out.Op = e.Op + " in " + out.Op
		}
	}
	if e.Kind == shim.OutOfMemory {
		device := c.device
		switch {
		case e.Account >= shim.GPUAccount:
			device = CUDA(e.Account - shim.GPUAccount)
		case e.Account > 0:
			device = CPU(e.Account - 1)
		}
		out.Err = &MemoryError{Device: device, Limit: e.Limit, Live: e.Live, Requested: e.Requested}
	}
	out.Args = Describe(tensors)
	return out
}

// Check panics with the *Error of a call that failed.
func (c *Ctx) Check(op string, err *shim.Error, tensors ...*Tensor) {
	if err != nil {
		panic(c.callError(op, tensors, err))
	}
}

// check is Ctx.Check for a call without a context.
func (t *Tensor) check(op string, err *shim.Error) {
	if err != nil {
		panic(&Error{Op: op, Args: []string{t.String()}, Message: err.Message})
	}
}

// Describe returns the tensors as in an Error's Args, such as "float32[8,16]".
func Describe(tensors []*Tensor) []string {
	out := make([]string, len(tensors))
	for i, t := range tensors {
		out[i] = t.String()
	}
	return out
}

// PanicError is a panic of Go code, such as a user's layer, that is not an operator's failure.
type PanicError struct {
	Value any
	Stack []byte // runtime.Stack of the goroutine that panicked, cut off at 16 KiB
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Unwrap returns the panic's value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// Caught returns a value from recover as an error: an *Error itself, anything else as a *PanicError
// with the stack of the calling goroutine.
func Caught(p any) error {
	if e, ok := p.(*Error); ok {
		return e
	}
	stack := make([]byte, 16<<10)
	return &PanicError{Value: p, Stack: stack[:runtime.Stack(stack, false)]}
}
