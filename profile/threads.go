package profile

import (
	"context"
	"runtime"
	"slices"
	"time"

	"penstock.example/internal/system"
	"penstock.example/nn"
	"penstock.example/remat"
	"penstock.example/torch"
)

// Numbers of threads take turns, in rounds over the layers of a window. Windows are short.
const (
	rounds      = 3
	threadsTime = 3 * time.Second       // after which no window begins
	forwardTime = 50 * time.Millisecond // of a window, with one thread
	turnTime    = 30 * time.Millisecond // of a turn, at least
	maxPasses   = 100                   // in a turn
)

// ThreadTimes is how long a micro-batch takes with several numbers of threads.
type ThreadTimes struct {
	Threads []int
	Rounds  [][]time.Duration // of all layers, by round and by index of Threads
}

// Faster returns how many times as fast Threads[i] was as Threads[j]: the median of the rounds.
func (t ThreadTimes) Faster(i, j int) float64 {
	var ratios []float64
	for _, times := range t.Rounds {
		ratios = append(ratios, times[j].Seconds()/max(times[i], 1).Seconds())
	}
	slices.Sort(ratios)
	return ratios[len(ratios)/2]
}

// Threads times forward and backward of a model's layers with several numbers of threads, which
// take turns, three times. After some seconds it ends, so that the last layers may be missing. A
// nil Config.Clock is the time of day. Config.Threads, Repeats, Devices and Balance are ignored.
// Otherwise it works like [Measure].
func Threads(ctx context.Context, model *nn.Sequential, config Config, counts []int,
	sample ...*torch.Tensor) (ThreadTimes, error) {
	if begin := time.Now(); config.Clock == nil {
		config.Clock = func() time.Duration { return time.Since(begin) }
	}
	config.Threads, config.Balance = slices.Max(counts), nil
	t := ThreadTimes{Threads: counts}
	for range rounds {
		t.Rounds = append(t.Rounds, make([]time.Duration, len(counts)))
	}
	err := withProber(ctx, model, config, sample, func(p *prober) {
		p.overwrite, p.overwrote = true, slices.Repeat([]bool{true}, len(p.layers)) // all may overwrite
		p.cut(slices.Repeat([]int{1}, len(p.layers)))
		p.begin(1)
		in, end := p.sampleInput(sample), p.Clock()+threadsTime
		defer func() { in.free() }()
		for at := 0; at < len(p.layers) && (at == 0 || p.Clock() < end); {
			l := &lane{prober: p, window: window{from: at, to: at}, ctx: ctx, in: in}
			var next input
			err := l.attempt(func() { l.grow(); l.rounds(&t); next = l.output() })
			l.reset()
			check(err)
			in.free()
			in, at = next, l.to
		}
	})
	return t, err
}

// grow adds layers to the window until their memory or their forward's time is too large.
func (l *lane) grow() {
	l.c.SetThreads(1)
	e, limit, begin := l.begin(), l.live()+l.windowLimit(), l.Clock()
	for l.to < len(l.layers) && (l.to == l.from || l.live() < limit && l.Clock()-begin < forwardTime) {
		l.at, l.to = l.to, l.to+1
		l.ready(l.layers[l.at])
		e.Again(l.at)
		l.run(e, remat.ForwardSave, l.at, new(durations))
	}
	e.Free()
}

func (l *lane) rounds(t *ThreadTimes) {
	for k := range t.Rounds {
		l.tell((float64(l.from) + float64((l.to-l.from)*k)/rounds) / float64(len(l.layers)))
		for j := range t.Threads {
			if k%2 == 1 { // a steady drift then hits all numbers alike
				j = len(t.Threads) - 1 - j
			}
			l.c.SetThreads(t.Threads[j])
			var times durations
			for begin := l.Clock(); len(times) < 2 || len(times) < maxPasses && l.Clock()-begin < turnTime; {
				before, e, into := l.spent, l.begin(), make([]layerTimes, len(l.layers))
				l.forward(e, remat.ForwardSave, forward, into)
				l.backward(e, laterBackward, into)
				times = append(times, l.spent-before)
			}
			// in the first pass threads are woken, or made
			t.Rounds[k][j] += time.Duration(1000 * times[1:].median())
		}
	}
}

// onThread runs f on an OS thread of its own if operators use several threads, which then end with
// f. Otherwise OpenMP would count them for ever, and let threads sleep between operators once it
// counts more threads than cores. A pipe's worker is such a thread already.
func onThread(threads int, f func() error) error {
	if threads <= 1 || system.ThreadTag() != 0 {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		return f()
	}
	done := make(chan error, 1)
	go func() {
		err := error(errGoexit) // unless f returns
		defer func() { done <- err }()
		runtime.LockOSThread() // for good
		err = f()
	}()
	return <-done
}
