package main

import (
	"context"
	"time"
)

// contestant is something whose steps are timed in turns with those of others.
type contestant interface {
	// round is the median of the steps, in milliseconds, that fit into some time, and of one at least.
	round(ctx context.Context, length time.Duration) (float64, error)
}

// alternate gives each of the contestants a round, again and again, so that what slows the machine
// for a while slows all of them. It returns the rounds of each. One that fails has its error at its
// place and no further rounds. The last error is ctx's.
func alternate(ctx context.Context, e effort, contestants []contestant) (ms [][]float64, failures []error, err error) {
	ms, failures = make([][]float64, len(contestants)), make([]error, len(contestants))
	for range e.rounds {
		for i, c := range contestants {
			if failures[i] != nil {
				continue
			}
			var took float64
			took, failures[i] = c.round(ctx, e.round)
			ms[i] = append(ms[i], took)
			if err := ctx.Err(); err != nil {
				return ms, failures, err
			}
		}
	}
	return ms, failures, nil
}
