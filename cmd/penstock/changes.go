package main

import (
	"context"
	"fmt"
	"io"
)

// tellChanges says on stderr in what a run will differ from its flags, because the data or other
// flags do not allow it.
func (j *job) tellChanges(_ context.Context, stderr io.Writer) error {
	rows := j.batch
	if n := j.training.Len(); rows > n {
		fmt.Fprintf(stderr, "--batch %d: there are %d samples to train with, so each step takes all of them\n", rows, n)
		rows = n
	}
	if j.config.Chunks > rows {
		fmt.Fprintln(stderr, fewerChunks(j.config.Chunks, rows))
	}
	if j.warmup > 0 && int64(j.warmup) >= j.last { // the step after the warm-up is the first at the rate that was asked for
		fmt.Fprintf(stderr, "--warmup %d: the run ends at step %d, so the learning rate never reaches %g\n",
			j.warmup, j.last, j.update.LR)
	}
	return nil
}

// fewerChunks says that a batch has too few samples for the micro-batches that were asked for.
func fewerChunks(chunks, rows int) string {
	return fmt.Sprintf("--chunks %d: a batch has %d samples, so it is cut into %d micro-batches", chunks, rows, rows)
}
