package profile

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"penstock.example/internal/arg"
	"penstock.example/nn"
	"penstock.example/remat"
	"penstock.example/segment"
	"penstock.example/torch"
)

// Layers are timed with other numbers of threads as in Measure, in passes over the layers of a window. A window
// ends also where its forward takes long, so that numbers take turns in short rounds.
const (
	threadsTime  = 3 * time.Second       // after which no further window is timed, and a window's rounds are few
	fewestRounds = 3                     // of a window
	forwardTime  = 50 * time.Millisecond // of a window, with one thread
	turn         = 30 * time.Millisecond // of each number, at least
	mostPasses   = 100                   // in a turn
)

// ThreadTimes is how long a micro-batch takes with several numbers of threads.
type ThreadTimes struct {
	Threads []int
	// Rounds is the time of forward and backward of the layers, by round, and by number as in Threads. What
	// is in one round ran in turns. There are fewer than Config.Repeats where layers took long.
	Rounds [][]time.Duration
	// Layers is how many were timed, from the first one on: fewer than the model has where they took long.
	Layers int
}

// Faster is how many times as fast number i of Threads was as number j, for each round, the least first.
func (t ThreadTimes) Faster(i, j int) (ratios []float64) {
	for _, times := range t.Rounds {
		ratios = append(ratios, times[j].Seconds()/max(times[i], 1).Seconds())
	}
	slices.Sort(ratios)
	return ratios
}

// Threads times forward and backward of a model's layers with several numbers of threads, in turns, as often
// as Config.Repeats says, or five times. It is as Measure otherwise, but for Config.Threads and Config.Balance, which it does
// not look at; without Config.Clock it times by the time of day. When some seconds are over it goes on to no
// further layer, and to no round after the third.
func Threads(ctx context.Context, model *nn.Sequential, config Config, counts []int, sample ...*torch.Tensor) (ThreadTimes, error) {
	if err := cmp.Or(arg.Context(ctx, "profile"), arg.Given(model, "profile: Threads: the model", "an nn.Sequential")); err != nil {
		return ThreadTimes{}, err
	}
	if len(counts) == 0 {
		return ThreadTimes{}, &ConfigError{Of: "profile", Field: "Threads", Value: counts, Problem: "there are no numbers", Remedy: "want some to compare"}
	}
	for _, n := range counts {
		if err := arg.Between("profile", "Threads", n, 1, torch.MaxThreads); err != nil {
			return ThreadTimes{}, err
		}
	}
	layers := model.Layers()
	config.Threads, config.Balance = slices.Max(counts), nil
	config, err := config.resolved(layers, sample)
	if err != nil {
		return ThreadTimes{}, err
	}
	config.Repeats = cmp.Or(config.Repeats, usualPasses)
	begin := time.Now()
	now := config.Clock
	if now == nil {
		now = func() time.Duration { return time.Since(begin) }
	}
	if config.Device.Kind == torch.KindCPU {
		config.Clock = now
	}
	routes, err := model.SkipRoutes()
	if err != nil {
		return ThreadTimes{}, fmt.Errorf("profile: %w", err)
	}
	defer config.trim()
	t := ThreadTimes{Threads: counts}
	for range config.Repeats {
		t.Rounds = append(t.Rounds, make([]time.Duration, len(counts)))
	}
	err = onThread(config.Threads, func() (err error) {
		p := newProber(ctx, config, layers, routes)
		defer p.close()
		p.overwrite, p.inputGrad = true, p.InputGrad
		if p.s, err = p.segment(0, len(p.layers), slices.Repeat([]int{1}, len(p.layers))); err != nil {
			return err
		}
		return p.threads(&t, now, sample)
	})
	return t, err
}

// threads times window after window.
func (p *prober) threads(t *ThreadTimes, now func() time.Duration, sample []*torch.Tensor) error {
	var in input
	err := attempt(theSample, func() error {
		for _, x := range sample {
			in.xs = append(in.xs, p.c.Keep(p.c.Detach(x)))
		}
		return nil
	})
	defer func() { in.free() }()
	for begin := now(); err == nil && t.Layers < len(p.layers) && (t.Layers == 0 || now()-begin < threadsTime); {
		var next input
		next, err = p.threadsOf(t, now, begin+threadsTime, in, t.Layers)
		in.free()
		in = next
	}
	t.Layers = min(t.Layers, p.model) // the loss is none of them
	return err
}

// threadsOf times the layers from one on that a window holds, and returns the input of the next. From end on no
// round begins but the fewest; then those of the windows before that this one has not are dropped.
func (p *prober) threadsOf(t *ThreadTimes, now func() time.Duration, end time.Duration, in input, from int) (next input, err error) {
	at := from
	run := func(e *segment.Execution, kind remat.Kind, i int) time.Duration {
		at = i
		mark := p.c.Mark()
		defer p.c.Release(mark)
		return p.do(e, remat.Op{Kind: kind, Layer: i}).took
	}
	err = attemptAt(func() string { return p.layers[at].Name }, func() error {
		defer p.c.Close()
		defer p.dropHeld()
		most, _ := p.room()
		w, before := window{from, from}, p.live()
		p.c.SetThreads(1)
		first := p.begin(in, window{from, len(p.layers)})
		for begin := now(); w.to < len(p.layers) && (w.to == from || p.live()-before < most && now()-begin < forwardTime); w.to++ {
			at = w.to
			defer p.ready(p.layers[at])()
			run(first, remat.ForwardSave, at)
			for _, q := range p.layers[at].State() {
				if q.Trainable() {
					most -= q.Owner().Bytes() // the gradient
				}
			}
		}
		first.Free()
		for k := range t.Rounds {
			if k >= fewestRounds && now() >= end {
				t.Rounds = t.Rounds[:k]
				break
			}
			p.progress(w.from*p.Repeats+(w.to-w.from)*k, len(p.layers)*p.Repeats)
			for j := range t.Threads {
				if k%2 == 1 { // what changes steadily is the same for all
					j = len(t.Threads) - 1 - j
				}
				p.c.SetThreads(t.Threads[j])
				took, err := p.steadily(now, func() (took time.Duration) {
					e := p.begin(in, w)
					for i := w.from; i < w.to; i++ {
						took += run(e, remat.ForwardSave, i)
					}
					p.giveOnes(e, w)
					for i := w.to - 1; i >= w.from; i-- {
						took += run(e, remat.Backward, i)
					}
					e.Free()
					return took
				})
				if err != nil {
					return err
				}
				t.Rounds[k][j] += took
			}
		}
		last := p.begin(in, w)
		for i := w.from; i < w.to; i++ {
			run(last, remat.Forward, i)
		}
		next.xs, next.skips = last.Take(w.to)
		t.Layers = w.to
		return nil
	})
	return next, err
}

// onThread runs f on an OS thread of its own where it has several threads, which end with that one: OpenMP would
// count them for ever, and where it counts more than there are cores, all of them sleep between operators. A
// pipe's worker is such a thread itself.
func onThread(threads int, f func() error) (err error) {
	if threads <= 1 || torch.ThreadTag() != 0 {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		return f()
	}
	var panicked any
	ended, done := false, make(chan struct{})
	go func() {
		defer close(done)
		defer func() { panicked = recover() }()
		runtime.LockOSThread() // for good
		err = f()
		ended = true
	}()
	<-done
	if panicked != nil {
		panic(panicked)
	}
	if !ended {
		runtime.Goexit() // as a layer did
	}
	return err
}

// steadily is the median time of passes of one kind, of which the first does not count: threads are woken, or
// made, in it.
func (p *prober) steadily(now, pass func() time.Duration) (time.Duration, error) {
	var times timed
	for begin := now(); len(times) < 2 || len(times) < mostPasses && now()-begin < turn; {
		if err := p.ctx.Err(); err != nil {
			return 0, err
		}
		times = append(times, pass())
	}
	return times[1:].median(), nil
}
