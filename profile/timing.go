package profile

import (
	"fmt"
	"slices"
	"time"

	"penstock/torch"
)

// Timing says how the times of a profile were taken, and how far they can be trusted.
type Timing struct {
	// Processor says that times are processor time of the one thread that ran the layers. Otherwise they are differences of the time of day, and grow with whatever else the machine does.
	Processor bool
	// Spread is how much longer the median run took than the least, which counts, as a part of the least: of all layers added up. 0 if there was one run, or nothing was timed.
	Spread float64
}

// tolerable is the greatest spread of times that no warning names. On a quiet machine it is some per cent.
const tolerable = 0.15

// Warning says that the times are uncertain, and by how much; "" if they are not.
func (t Timing) Warning() string {
	if t.Spread <= tolerable {
		return ""
	}
	return fmt.Sprintf("the median run took %.0f %% longer than the least", 100*t.Spread)
}

// Spread is how much longer the median of a unit's timed runs took than the least, which counts, as a part of the least.
type Spread struct{ ForwardNoGrad, Forward, Backward float64 }

// timed is what runs of one thing took.
type timed []time.Duration

func (t timed) least() time.Duration {
	if len(t) == 0 {
		return 0
	}
	return slices.Min(t)
}

func (t timed) median() time.Duration {
	if len(t) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(t))
	return sorted[(len(t)-1)/2]
}

// spread is how much longer the medians of several things' runs take than the least runs, all added up, as a part of the least.
func spread(list ...timed) float64 {
	var least, median time.Duration
	for _, t := range list {
		least, median = least+t.least(), median+t.median()
	}
	if least <= 0 {
		return 0
	}
	return (median - least).Seconds() / least.Seconds()
}

// timing is that of everything that was timed.
func (c *Config) timing(list []timed) Timing {
	return Timing{Processor: c.processor(), Spread: spread(list...)}
}

// processor says whether runs are timed by the processor time of the thread that measures: it is the only one that works.
func (c *Config) processor() bool {
	return c.Clock == nil && c.Threads <= 1 && c.Device.Kind == torch.KindCPU
}

// clock is what runs are timed by.
func (c *Config) clock() func() time.Duration {
	switch {
	case c.Clock != nil:
		return c.Clock
	case c.processor():
		return torch.ThreadTime
	}
	began := time.Now()
	return func() time.Duration { return time.Since(began) }
}
