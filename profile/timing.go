package profile

import (
	"fmt"
	"slices"
	"time"

	"penstock.example/internal/engine"
	"penstock.example/internal/system"
	"penstock.example/torch"
)

// Timing describes how the times of a profile were taken, and how far they can be trusted.
type Timing struct {
	// Spread is how much longer the median run took than the lower quartile, which counts, as a
	// part of the latter, over all layers. 0 if there was one run, or nothing was timed.
	Spread float64
	// Devices is how many devices worked while any layer was timed; 0 where nothing was timed.
	Devices int
}

// tolerable is the greatest spread without a warning. On a quiet machine the spread is some per
// cent.
const tolerable = 0.15

// Warning says by how much the times are uncertain; "" if they are not.
func (t Timing) Warning() string {
	if t.Spread <= tolerable {
		return ""
	}
	return fmt.Sprintf("the median run took %.0f %% longer than the lower quartile", 100*t.Spread)
}

// useless is the spread from which on times are of no use: the median run took twice as long as
// what counts.
const useless = 1

// Useless says that the times are of no use for a decision.
func (t Timing) Useless() bool { return t.Spread >= useless }

// timed is how long each run of one thing took.
type timed []time.Duration

// typical is the lower quartile, which counts: most runs may be disturbed without changing it. Sums of
// the least were 4 to 8 % below the quickest steps on a machine with other work.
func (t timed) typical() time.Duration { return t.quantile(0.25) }

func (t timed) median() time.Duration { return t.quantile(0.5) }

// quantile interpolates between runs, so that it does not depend on their number; 0 of no runs.
func (t timed) quantile(part float64) time.Duration {
	if len(t) == 0 {
		return 0
	}
	list := slices.Sorted(slices.Values(t))
	at := part * float64(len(list)-1)
	k := int(at)
	out := list[k]
	if k+1 < len(list) {
		out += time.Duration((at - float64(k)) * float64(list[k+1]-out))
	}
	return out
}

// spread is how much longer the median runs take than the runs that count, summed over several
// things, as a part of the latter.
func spread(list ...timed) float64 {
	var typical, median time.Duration
	for _, t := range list {
		typical, median = typical+t.typical(), median+t.median()
	}
	if typical <= 0 {
		return 0
	}
	return (median - typical).Seconds() / typical.Seconds()
}

// processor reports whether runs are timed by the processor time of the thread that measures. It is
// where no other thread works.
func (c *Config) processor() bool {
	return c.Clock == nil && c.Threads <= 1 && c.Device.Kind == torch.KindCPU
}

// took is how long something takes on a context's device; see Config.Clock.
func (c *Config) took(on *torch.Ctx, do func()) time.Duration {
	clock := c.Clock
	if c.processor() {
		clock = system.ThreadTime
	}
	if clock != nil {
		start := clock()
		do()
		return clock() - start
	}
	start := engine.Now(on)
	defer start.Free()
	do()
	end := engine.Now(on)
	defer end.Free()
	on.Synchronize()
	return end.Since(start)
}

// queues reports whether the host queues all runs of a pass before it waits for them, as in a step on
// a GPU. Tests replace it.
var queues = func(c *Config) bool { return c.Clock == nil && c.Device.Kind == torch.KindCUDA }

// queued is a run between two moments of a stream.
type queued struct{ start, end engine.Moment }

// took is how long something takes on a context's device. Where a pass queues its runs, it is the
// number of the run, counted from 1, until timedPass replaces it.
func (p *prober) took(on *torch.Ctx, do func()) time.Duration {
	if !p.queueing {
		return p.Config.took(on, do)
	}
	k := len(p.queue)
	p.queue = append(p.queue, queued{start: engine.Now(on)})
	do()
	p.queue[k].end = engine.Now(on)
	return time.Duration(k + 1)
}

// timedPass does a pass and returns how long its runs took together.
func (l *lane) timedPass(times []unitTimes) (all time.Duration, err error) {
	if l.queueing = queues(&l.Config); !l.queueing {
		before := l.spent
		err = l.pass(times)
		return l.spent - before, err
	}
	defer func() {
		for _, r := range l.queue {
			r.start.Free()
			r.end.Free()
		}
		l.queue, l.queueing = l.queue[:0], false
	}()
	if err := l.pass(times); err != nil {
		return 0, err
	}
	l.c.Synchronize()
	for _, ops := range times {
		for _, runs := range ops {
			for k, number := range runs {
				if number > 0 {
					r := l.queue[number-1]
					runs[k] = r.end.Since(r.start)
					all += runs[k]
				}
			}
		}
	}
	return all, nil
}
