package profile

import (
	"fmt"
	"slices"
	"time"

	"penstock.example/internal/engine"
	"penstock.example/internal/system"
	"penstock.example/torch"
)

// Timing says how far the times of a profile can be trusted.
type Timing struct {
	// Spread is how much longer the median run took than the 25th percentile, which counts, over all
	// layers; 0.1 is 10 %. It is 0 if there was one run, or nothing was timed.
	Spread  float64
	Devices int // that worked while layers were timed; 0 if nothing was timed
}

// Warning says by how much the times are uncertain; "" if they are not. On a quiet machine the
// spread is some per cent.
func (t Timing) Warning() string {
	if t.Spread <= 0.15 {
		return ""
	}
	return fmt.Sprintf("the median run took %.0f %% longer than the lower quartile", 100*t.Spread)
}

// Useless reports whether the times are of no use: the median run took twice as long as what counts.
func (t Timing) Useless() bool { return t.Spread >= 1 }

// timed is how long each run of one operation took.
type timed []time.Duration

// typical is the 25th percentile, which counts. Most runs may be disturbed without changing it. Sums
// of the least were 4 to 8 % below the quickest steps on a machine with other work.
func (t timed) typical() time.Duration { return t.quantile(0.25) }

func (t timed) median() time.Duration { return t.quantile(0.5) }

// quantile interpolates between runs, so that their number does not matter; 0 of no runs.
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

// spread is Timing.Spread of several operations.
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

// queues reports whether the host queues all runs of a pass before it waits for them, as in a step on
// a GPU. Tests replace it.
var queues = func(c *Config) bool { return c.Clock == nil && c.Device.Kind == torch.KindCUDA }

// queued is a run between two moments of a stream.
type queued struct{ start, end engine.Moment }

// took returns how long a run takes on a context's device; see Config.Clock. If a pass queues its
// runs it returns the number of the run, from 1, which timedPass replaces.
func (p *prober) took(on *torch.Ctx, do func()) time.Duration {
	if p.queueing {
		k := len(p.queue)
		p.queue = append(p.queue, queued{start: engine.Now(on)})
		do()
		p.queue[k].end = engine.Now(on)
		return time.Duration(k + 1)
	}
	clock := p.Clock
	if clock == nil && p.Threads <= 1 && p.Device.Kind == torch.KindCPU {
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
