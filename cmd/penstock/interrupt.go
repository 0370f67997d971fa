package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"penstock.example/train"
)

// afterStep is called after each step of training. Nil is nothing. Tests set one that does not
// return.
var afterStep train.Hook

// announce says as soon as a signal ends ctx that the run will end in order, until stop is called.
// Only a file is told: other writers need not allow calls from several goroutines.
func announce(ctx context.Context, stderr io.Writer) (stop func() bool) {
	to, ok := stderr.(*os.File)
	if !ok {
		return func() bool { return true }
	}
	return context.AfterFunc(ctx, func() {
		fmt.Fprint(to, "\nfinishing the step; Ctrl-C again ends at once\n")
	})
}
