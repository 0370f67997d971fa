package main

import (
	"errors"
	"io"
	"os"
	"syscall"

	"penstock.example/internal/arg"
	"penstock.example/internal/shim"
)

// output is standard output, and the first error of writing to it: a verb whose results did not
// arrive has failed, whether it looked at the error or not.
type output struct {
	to  io.Writer
	err error
}

func (o *output) Write(p []byte) (int, error) {
	n, err := o.to.Write(p)
	if o.err == nil && len(p) > 0 {
		o.err = err
	}
	return n, err
}

// checkOutput finds out, before minutes are spent on what is to be written, whether standard output
// is there at all. A file system that is full now may have space later.
func checkOutput(stdout io.Writer) error {
	if _, err := stdout.Write(nil); errors.Is(err, syscall.EBADF) {
		return err
	}
	return nil
}

// keepClosed makes standard output as closed as it was when the process began. Go has put /dev/null
// there, which takes every result without an error; closing it would give its number to the next
// file that is opened.
func keepClosed() error {
	if !shim.ClosedAtStart(syscall.Stdout) {
		return nil
	}
	unwritable, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer unwritable.Close()
	return syscall.Dup3(int(unwritable.Fd()), syscall.Stdout, 0)
}

// formatBytes writes a size for reading.
func formatBytes(n int64) string { return arg.Bytes(n) }
