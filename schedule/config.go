package schedule

import (
	"fmt"
	"slices"
	"time"
)

// Generator makes the program of a schedule. It is deterministic, and its programs pass [Check], on
// links that hold any number of values, on links that meet and on links in order.
type Generator func(Config) (*Program, error)

// Make returns the program for a config. A program that [Check] refuses, or that is for other
// stages, micro-batches, workers, skips or recomputations, is an error.
func (g Generator) Make(c Config) (*Program, error) {
	want, placement, err := c.program()
	if err != nil {
		return nil, fmt.Errorf("schedule: %w", err)
	}
	p, err := g(c)
	if err == nil {
		err = Check(p, Limits{})
	}
	if err != nil {
		return nil, err
	}
	if p.Stages != want.Stages || p.MicroBatches != want.MicroBatches || p.Phase != want.Phase ||
		!slices.Equal(p.Skips, want.Skips) || !slices.Equal(p.Placement(), placement) {
		return nil, fmt.Errorf("schedule: a %v program for %d micro-batches, skips %v and stages on the workers %v; want a %v one for %d, %v and %v",
			p.Phase, p.MicroBatches, p.Skips, p.Placement(), want.Phase, want.MicroBatches, want.Skips, placement)
	}
	if other := p.otherRecomputation(c); other != "" {
		return nil, fmt.Errorf("schedule: the program has other recomputations: %s", other)
	}
	return p, nil
}

// Config describes the program that a [Generator] is to make. Stages and MicroBatches must be
// positive; the rest may be zero.
type Config struct {
	Stages       int
	MicroBatches int

	// Recompute reports whether a stage's activations for a micro-batch are dropped after forward
	// and computed again before backward. Nil means never.
	Recompute func(stage, microBatch int) bool

	// Worker gives the worker of each stage. Several stages may share one; every worker from 0 to
	// the highest has at least one. Nil means a worker for each stage.
	Worker []int

	// Skips are the pairs of stages between which something moves directly, each from an earlier to
	// a later stage. Neighbours, which have a link anyway, and repetitions are ignored. The rest
	// become [Program.Skips].
	Skips []Edge

	// Capacity becomes [Program.Capacity].
	Capacity int

	// Time is how long an action takes. It does not change the order of computations, only where
	// values are received: if actions take that long, no receive that stands before a send, so that
	// links may meet, makes a worker wait. Nil means that forwards and both parts of a backward
	// take as long as each other.
	Time func(Action) time.Duration
}

// program validates the config and returns a program without its actions, and the worker of each
// stage.
func (c Config) program() (*Program, []int, error) {
	placement, err := c.placement()
	if err != nil {
		return nil, nil, err
	}
	skips, err := c.skips()
	if err == nil {
		err = checkSize(c.Stages, len(skips), c.MicroBatches)
	}
	if err == nil && c.Capacity < Meet {
		err = fmt.Errorf("a capacity of %d values on a link, want 0 for any number, %d for none, or 1 and more", c.Capacity, Meet)
	}
	if err != nil {
		return nil, nil, err
	}
	return &Program{
		Stages: c.Stages, MicroBatches: c.MicroBatches,
		Skips: skips, Capacity: c.Capacity, Workers: make([][]Action, slices.Max(placement)+1),
	}, placement, nil
}

// placement validates the config and returns the worker of each stage.
func (c Config) placement() ([]int, error) {
	if err := checkSize(c.Stages, 0, c.MicroBatches); err != nil {
		return nil, err
	}
	if c.Worker == nil {
		return Loop(c.Stages, c.Stages)
	}
	used := make([]bool, c.Stages)
	for s, w := range c.Worker {
		if w < 0 || w >= c.Stages || len(c.Worker) != c.Stages {
			return nil, fmt.Errorf("stage %d is on worker %d; want a worker from 0 to %d for each of %d stages", s, w, c.Stages-1, c.Stages)
		}
		used[w] = true
	}
	if len(c.Worker) == 0 || slices.Contains(used[:slices.Max(c.Worker)], false) {
		return nil, fmt.Errorf("stages are on the workers %v; want workers without gaps", c.Worker)
	}
	return c.Worker, nil
}

// time is how long an action takes.
func (c Config) time() func(Action) time.Duration {
	if c.Time == nil {
		return parts
	}
	return c.Time
}

// recomputes reports whether a stage recomputes a micro-batch.
func (c Config) recomputes(stage, microBatch int) bool {
	return c.Recompute != nil && c.Recompute(stage, microBatch)
}
