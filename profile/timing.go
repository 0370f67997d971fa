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
	// Spread is how much longer the median run took than the 25th percentile, over all layers; 0.1
	// is 10 %. It is 0 if there was one run, or nothing was timed.
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

// Useless reports whether the times are of no use: the median run took twice the 25th percentile.
func (t Timing) Useless() bool { return t.Spread >= 1 }

// durations has the duration of each run of one operation.
type durations []time.Duration

// micros is the 25th percentile in microseconds. Other work may disturb most runs without changing
// it. Sums of minima were 4 to 8 % less than the quickest steps on a machine with other work.
func (t durations) micros() float64 { return t.quantile(0.25) }

func (t durations) median() float64 { return t.quantile(0.5) }

// quantile interpolates between runs, so that their number does not matter. Without runs it is 0.
func (t durations) quantile(part float64) float64 {
	if len(t) == 0 {
		return 0
	}
	list := slices.Sorted(slices.Values(t))
	at := part * float64(len(list)-1)
	k := int(at)
	next := list[min(k+1, len(list)-1)]
	return (float64(list[k]) + (at-float64(k))*float64(next-list[k])) / float64(time.Microsecond)
}

func spread(layers []layerTimes) float64 {
	var quartile, median float64 // microseconds
	for _, l := range layers {
		for _, t := range l {
			quartile, median = quartile+t.micros(), median+t.median()
		}
	}
	return (median - quartile) / max(quartile, 1e-3)
}

// queues reports whether the host queues all runs of a pass before it waits for them, as in a step
// on a GPU. Tests replace it.
var queues = func(c *Config) bool { return c.Clock == nil && c.Device.Kind == torch.KindCUDA }

// queued is a run between two moments of a stream.
type queued struct {
	start, end engine.Moment
	into       *durations
}

// time appends how long a run takes on a context's device; see Config.Clock. If a pass queues its
// runs, endQueue appends it.
func (p *prober) time(on *torch.Ctx, into *durations, do func()) {
	defer on.Release(on.Mark())
	clock := p.Clock
	if clock == nil && p.Threads <= 1 && p.Device.Kind == torch.KindCPU {
		clock = system.ThreadTime
	}
	if clock != nil && !p.queueing {
		start := clock()
		do()
		p.took(clock()-start, into)
		return
	}
	k := len(p.queue)
	p.queue = append(p.queue, queued{start: engine.Now(on), into: into})
	do()
	p.queue[k].end = engine.Now(on)
	if !p.queueing {
		p.endQueue(on)
	}
}

func (p *prober) took(t time.Duration, into *durations) { *into, p.spent = append(*into, t), p.spent+t }

// endQueue waits for all queued runs. If on is nil their times are dropped.
func (p *prober) endQueue(on *torch.Ctx) {
	if on != nil {
		on.Synchronize()
	}
	for _, r := range p.queue {
		if on != nil {
			p.took(r.end.Since(r.start), r.into)
		}
		r.start.Free()
		r.end.Free()
	}
	p.queue, p.queueing = p.queue[:0], false
}
