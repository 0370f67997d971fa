package schedule

import (
	"cmp"
	"fmt"
	"slices"
)

// Generator makes the program of a schedule. It is deterministic. Its programs pass [Check] at any
// [Program.Capacity], and values between two workers are received in the order of their sends.
type Generator func(Config) (*Program, error)

// Make returns the program for a config. It fails if [Check] refuses the program, or if its stages,
// micro-batches, workers, skips or recomputations are not the config's.
func (g Generator) Make(c Config) (*Program, error) {
	want, placement, err := c.emptyProgram()
	if err != nil {
		return nil, fmt.Errorf("schedule: %w", err)
	}
	p, err := g(c)
	if err == nil {
		err = Check(p)
	}
	if err != nil {
		return nil, err
	}
	shape := func(p *Program, placement []int) string {
		return fmt.Sprintf("a %v program for %d micro-batches, skips %v and stages on the workers %v",
			p.Phase, p.MicroBatches, p.Skips, placement)
	}
	if given, wanted := shape(p, p.Placement()), shape(want, placement); given != wanted {
		return nil, fmt.Errorf("schedule: %s; want %s", given, wanted)
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

	// Recompute reports whether a stage drops its activations of a micro-batch after forward and
	// computes them again before backward. Nil means never.
	Recompute func(stage, microBatch int) bool

	// Worker gives the worker of each stage. Several stages may share a worker, and every worker
	// from 0 to the highest has a stage. Nil means a worker for each stage.
	Worker []int

	// Skips become [Program.Skips], in any order. Neighbours, which have a link anyway, and
	// repetitions are ignored.
	Skips []Edge

	// Capacity becomes [Program.Capacity].
	Capacity int
}

// emptyProgram validates the config. It returns a program without actions and each stage's worker.
func (c Config) emptyProgram() (*Program, []int, error) {
	p := &Program{Stages: c.Stages, MicroBatches: c.MicroBatches, Capacity: c.Capacity}
	for _, e := range c.Skips {
		if !e.neighbours() {
			p.Skips = append(p.Skips, e)
		}
	}
	slices.SortFunc(p.Skips, compareEdges)
	p.Skips = slices.Compact(p.Skips)
	if err := p.checkHeader(); err != nil {
		return nil, nil, err
	}
	placement := c.Worker
	for s := 0; c.Worker == nil && s < c.Stages; s++ {
		placement = append(placement, s)
	}
	used := make([]bool, c.Stages)
	for s, w := range placement {
		if w < 0 || w >= c.Stages || len(placement) != c.Stages {
			return nil, nil, fmt.Errorf("stage %d is on worker %d; want a worker from 0 to %d for each of "+
				"%d stages", s, w, c.Stages-1, c.Stages)
		}
		used[w] = true
	}
	if len(placement) == 0 || slices.Contains(used[:slices.Max(placement)], false) {
		return nil, nil, fmt.Errorf("stages are on the workers %v; want workers without gaps", placement)
	}
	p.Workers = make([][]Action, slices.Max(placement)+1)
	return p, placement, nil
}

func (c Config) recomputes(stage, microBatch int) bool {
	return c.Recompute != nil && c.Recompute(stage, microBatch)
}

// maxForwards bounds (stages + skips) * micro-batches, so that a typo allocates no gigabytes.
const maxForwards = 1 << 24

// checkHeader checks everything but the actions.
func (p *Program) checkHeader() error {
	switch {
	case p.Stages < 1:
		return fmt.Errorf("%d stages, want at least 1", p.Stages)
	case p.MicroBatches < 1:
		return fmt.Errorf("%d micro-batches, want at least 1", p.MicroBatches)
	case p.Stages > maxForwards/p.MicroBatches || len(p.Skips) > maxForwards/p.MicroBatches-p.Stages:
		return fmt.Errorf("%d stages and %d skips of %d micro-batches are more than %d forwards",
			p.Stages, len(p.Skips), p.MicroBatches, maxForwards)
	case p.Phase > BackwardOnly:
		return fmt.Errorf("unknown %v", p.Phase)
	case p.Capacity < Meet:
		return fmt.Errorf("a capacity of %d values on a link, want 0 for any number, %d for none, or 1 and "+
			"more", p.Capacity, Meet)
	}
	for i, e := range p.Skips {
		switch {
		case e.From < 0 || e.From >= p.Stages || e.To < 0 || e.To >= p.Stages:
			return fmt.Errorf("skip %v: stages go from 0 to %d", e, p.Stages-1)
		case e.From >= e.To:
			return fmt.Errorf("skip %v: want an earlier stage first, as in 0>2", e)
		case e.neighbours():
			return fmt.Errorf("skip %v: neighbours need none", e)
		case i > 0 && compareEdges(p.Skips[i-1], e) >= 0:
			return fmt.Errorf("skip %v: comes after %v, want each skip once, in ascending order", e,
				p.Skips[i-1])
		}
	}
	return nil
}

// Edge is a pair of stages that exchange values directly, past the stages in between: for a skip
// connection, or a parameter that both use. Activations go from From to To, gradients back.
type Edge struct {
	From, To int // From < To
}

// String returns the edge's text form, as in 0>3.
func (e Edge) String() string { return fmt.Sprintf("%d>%d", e.From, e.To) }

func compareEdges(a, b Edge) int { return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To)) }

func (e Edge) neighbours() bool { return e.To == e.From+1 }
