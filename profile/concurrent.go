package profile

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"penstock.example/internal/segment"
	"penstock.example/internal/system"
	"penstock.example/remat"
	"penstock.example/torch"
)

// team is a row of windows that are timed at once, each on a device and a thread of its own. In a
// pipeline a layer takes up to 1.3 times as long as on an idle machine, as cores share caches,
// memory and clock. So a lane that has done its passes repeats them, untimed, until all lanes have.
type team struct {
	lanes []*lane
	times []layerTimes
	left  atomic.Int32 // lanes with passes to do
}

// lane is a window with the device that it is timed on.
type lane struct {
	*prober
	window
	ctx context.Context // of the row
	in  input           // of the first layer
	at  int             // the layer that runs
}

// timeRow times the windows of a row, and returns their output.
func (p *prober) timeRow(in input, row []window, times []layerTimes) (next input, err error) {
	ctx, stop := context.WithCancel(p.ctx)
	defer stop()
	t := &team{times: times}
	for k, w := range row {
		l := &lane{prober: p, window: w, ctx: ctx, in: in}
		if k > 0 {
			l.prober = p.laneOn(p.others[k-1])
			defer l.close()
			defer l.in.free()
		}
		defer l.reset()
		t.lanes = append(t.lanes, l)
		if err := l.attempt(func() {
			for l.at = l.from; l.at < l.to; l.at++ {
				l.ready(l.layers[l.at])
			}
			if k < len(row)-1 {
				in = l.output()
			}
		}); err != nil {
			return next, err
		}
	}
	if err := t.run(stop); err != nil {
		return next, err
	}
	for _, w := range row {
		scaleToPasses(times[w.from:w.to])
	}
	last := t.lanes[len(row)-1]
	err = last.attempt(func() { next = last.output() })
	return next, err
}

// laneOn returns a prober of the same layers for a lane on another device.
func (p *prober) laneOn(d torch.Device) *prober {
	config := p.Config
	config.Device, config.Peer = d, d
	q := newProber(p.ctx, config, p.layers[:p.model], p.routes)
	q.isLane, q.s, q.overwrote = true, p.s, p.overwrote
	return q
}

func (l *lane) attempt(f func()) error {
	return attempt(func() string { return l.layers[min(l.at, l.to-1)].Name }, f)
}

// output runs a lane once, for the input of the next one.
func (l *lane) output() (next input) {
	e := l.begin()
	l.forward(e, remat.Forward, forward, make([]layerTimes, l.to))
	next.xs, next.skips = e.Take(l.to)
	e.Free()
	return next
}

// run times an operation on layer i.
func (l *lane) run(e *segment.Execution, kind remat.Kind, i int, into *durations) {
	l.at = i
	check(l.ctx.Err())
	defer l.c.SetAutocast(l.c.SetAutocast(l.Autocast))
	l.time(l.c, into, func() { e.Do(l.c, remat.Op{Kind: kind, Layer: i}) })
}

// run times all lanes, several on a thread each.
func (t *team) run(stop func()) error {
	t.left.Store(int32(len(t.lanes)))
	if len(t.lanes) == 1 {
		return t.time(t.lanes[0])
	}
	var lanes sync.WaitGroup
	errs := make(chan error, len(t.lanes))
	tag := system.ThreadTag()
	for _, l := range t.lanes {
		lanes.Go(func() {
			runtime.LockOSThread() // for good: the thread ends with the goroutine
			system.TagThread(tag)
			err := error(errGoexit) // unless time returns
			defer func() {
				if err != nil {
					errs <- err
					stop()
				}
			}()
			err = t.time(l)
		})
	}
	lanes.Wait()
	close(errs)
	return <-errs
}

// time does the passes of a lane until all lanes have done theirs.
func (t *team) time(l *lane) error {
	return l.attempt(func() {
		for n := (count{Config: &l.Config}); n.more() || t.left.Load() > 0; {
			if l == t.lanes[0] {
				l.tell(float64(l.from) / float64(len(l.layers)))
			}
			times, wanted := t.times, n.more()
			if !wanted {
				times = make([]layerTimes, len(times))
			}
			before := l.spent
			l.queueing = queues(&l.Config)
			l.pass(times)
			if l.endQueue(l.c); !n.add(l.spent - before) {
				clear(times[l.from:l.to])
			}
			if wanted && !n.more() {
				t.left.Add(-1)
			}
		}
	})
}

// count counts the passes of a window. There are 2 to 5, fewer if they take long.
type count struct {
	*Config
	passes, counted int
	spent           time.Duration // in counted passes
}

func (n *count) more() bool {
	if n.Repeats > 0 {
		return n.counted < n.Repeats
	}
	return n.counted < 2 || n.counted < 5 && n.spent < time.Second
}

// add adds a pass and reports whether it counts. A short first pass does not, as first runs slow it
// down. On a GPU the first pass loads the kernels, and never counts.
func (n *count) add(took time.Duration) bool {
	if n.passes++; n.passes == 1 && (took < 250*time.Millisecond || queues(n.Config)) {
		return false
	}
	n.counted, n.spent = n.counted+1, n.spent+took
	return true
}
