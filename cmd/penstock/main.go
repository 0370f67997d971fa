// Command penstock trains networks as pipelines of micro-batches. See penstock help.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal asks for an orderly end. From then on signals do what they do to any
	// process: the second one ends it at once.
	context.AfterFunc(ctx, stop)
	// Whoever reads stdout may stop reading: that is an error to write, which ends a run in order,
	// not a reason to be killed.
	signal.Ignore(syscall.SIGPIPE)
	if err := keepClosed(); err != nil {
		fmt.Fprintln(os.Stderr, "penstock:", err)
		os.Exit(exitFailed)
	}
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	// Some file systems tell only now that what was written has no place.
	if err := os.Stdout.Close(); err != nil && code == exitDone {
		fmt.Fprintln(os.Stderr, "penstock:", err)
		code = exitFailed
	}
	os.Exit(code)
}
