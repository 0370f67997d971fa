package profile

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"penstock.example/nn"
	"penstock.example/remat"
	"penstock.example/segment"
	"penstock.example/torch"
)

// While one core works, others that work too take caches, memory and clock from it: in a pipeline a layer
// takes up to 1.3 times as long as on a machine that does nothing else. So the windows of a row run on a
// device and a thread each, as stages do. Each does the passes that count, and goes on with passes that do
// not until the last of them has done its own: while a layer is timed, all devices work.

// Others are the CPU devices, for Config.Beside, that work beside one where so many devices have so many threads
// each: as many as there are cores for.
func Others(than torch.Device, devices, threads int) (list []torch.Device) {
	n := min(devices, runtime.NumCPU()/max(threads, 1)) - 1
	for i := 0; i < torch.MaxCPU && len(list) < n; i++ {
		if d := torch.CPU(i); d != than {
			list = append(list, d)
		}
	}
	return list
}

// team is a row of windows that are timed side by side.
type team struct {
	lanes  []*lane
	times  []unitTimes
	stop   context.CancelFunc
	left   atomic.Int32 // lanes that have passes to do
	once   sync.Once
	err    error       // the first
	goexit atomic.Bool // a layer has ended its goroutine
}

// lane is a window with the device that it is timed on.
type lane struct {
	*prober
	window
	ctx context.Context // of the row
	in  input           // of the first layer
	at  int             // the layer that runs
	// tight says that there is no room for two micro-batches at once.
	tight bool
	spent time.Duration // in layers, in all passes
}

// sideBySide times the windows of a row, and returns the input of the window after them.
func (p *prober) sideBySide(in input, row []window, times []unitTimes, tight func(w window) bool) (next input, err error) {
	t := &team{times: times}
	var ctx context.Context
	ctx, t.stop = context.WithCancel(p.ctx)
	defer t.stop()
	for k, w := range row {
		on := p
		if k > 0 {
			on = p.on(p.Beside[k-1])
			defer on.close()
		}
		t.lanes = append(t.lanes, &lane{prober: on, window: w, ctx: ctx, tight: tight(w)})
	}
	next, err = t.enter(0, in, map[*torch.Tensor]bool{})
	if p.ctx.Err() != nil {
		err = p.ctx.Err()
	}
	if err == nil {
		for _, w := range row {
			level(times[w.from:w.to])
		}
	}
	return next, err
}

// on is a prober of the same layers on another device.
func (p *prober) on(d torch.Device) *prober {
	q := &prober{Config: p.Config, ctx: p.ctx, layers: p.layers, model: p.model, routes: p.routes, s: p.s, seen: p.seen, overwrite: p.overwrite, inputGrad: p.inputGrad, flight: p.flight}
	q.Device = d
	q.c, q.peer = torch.NewCtx(torch.Options{Device: d, Threads: p.Threads}), torch.NewCtx(torch.Options{Device: d, Threads: p.Threads})
	return q
}

// enter makes the layers of a lane ready, and the input of the next one, until all run. taken are the shared
// parameters of lanes before it.
func (t *team) enter(k int, in input, taken map[*torch.Tensor]bool) (next input, err error) {
	if k == len(t.lanes) {
		if err := t.run(); err != nil {
			return input{}, err
		}
		last := t.lanes[k-1]
		return input{last.shared(in.xs), last.shared(in.skips)}, nil
	}
	l := t.lanes[k]
	err = l.attempt(func() error {
		defer l.c.Close()
		defer l.dropHeld()
		for l.at = l.from; l.at < l.to; l.at++ {
			defer l.ready(l.layers[l.at])()
		}
		defer l.replicate(taken)()
		l.in = in
		if l.tight && k == len(t.lanes)-1 { // its output has no room beside its passes
			if err = t.run(); err == nil {
				next, err = l.through()
			}
			return err
		}
		out, err := l.through()
		if err != nil {
			return err
		}
		defer func() { out.free() }()
		next, err = t.enter(k+1, out, taken)
		return err
	})
	return next, err
}

// attempt makes the panic of a lane the error of its layer.
func (l *lane) attempt(f func() error) error {
	return attemptAt(func() string { return l.layers[min(l.at, l.to-1)].Name }, f)
}

// replicate gives the lane's handles on parameters that lanes before it use as well a leaf of their own, so
// that no two threads add to one gradient.
func (l *lane) replicate(taken map[*torch.Tensor]bool) (restore func()) {
	var undo []func()
	var own []*torch.Tensor
	leaves := map[*torch.Tensor]*torch.Tensor{}
	for _, layer := range l.layers[l.from:l.to] {
		for _, h := range nn.Shared(layer.Layer) {
			value := h.Tensor()
			if !taken[value] {
				own = append(own, value)
				continue
			}
			if leaves[value] == nil {
				leaf := l.c.Keep(l.c.Detach(value)).SetRequiresGrad(h.Trainable())
				leaves[value] = leaf
				undo = append(undo, leaf.Free, func() { leaf.SetGradOf(nil) })
			}
			was := h.Replica()
			h.Replicate(leaves[value])
			undo = append(undo, func() { h.Replicate(was) })
		}
	}
	for _, value := range own {
		taken[value] = true
	}
	return func() {
		for _, u := range slices.Backward(undo) {
			u()
		}
	}
}

// through runs a lane once, for the input of the next one.
func (l *lane) through() (next input, err error) {
	e := l.begin(l.in, l.window)
	for i := l.from; i < l.to; i++ {
		if _, err := l.run(e, remat.Forward, i); err != nil {
			return next, err
		}
	}
	next.xs, next.skips = e.Take(l.to)
	e.Free()
	return next, nil
}

// run performs an operation on layer i, and returns how long it takes.
func (l *lane) run(e *segment.Execution, kind remat.Kind, i int) (time.Duration, error) {
	l.at = i
	if err := l.ctx.Err(); err != nil {
		return 0, err
	}
	mark := l.c.Mark()
	took := l.do(e, remat.Op{Kind: kind, Layer: i}).took
	l.spent += took
	l.c.Release(mark)
	return took, nil
}

// run times all lanes, the first on the calling goroutine. A layer that ends a goroutine ends this one.
func (t *team) run() error {
	var others sync.WaitGroup
	t.left.Store(int32(len(t.lanes)))
	tag := torch.ThreadTag()
	func() {
		defer others.Wait()
		ended := false
		defer func() {
			if !ended {
				t.stop()
			}
		}()
		for _, l := range t.lanes[1:] {
			others.Go(func() {
				runtime.LockOSThread() // and its thread ends with it
				torch.TagThread(tag)
				ended := false
				defer func() {
					if !ended {
						t.goexit.Store(true)
						t.stop()
					}
				}()
				t.time(l, nil)
				ended = true
			})
		}
		t.time(t.lanes[0], t.lanes[0].progress)
		ended = true
	}()
	if t.goexit.Load() {
		runtime.Goexit()
	}
	return t.err
}

// time does the passes of a lane until all lanes have done theirs.
func (t *team) time(l *lane, tell func(done, of int)) {
	err := l.attempt(func() error {
		last := t.lanes[len(t.lanes)-1].to
		for n := (count{Config: &l.Config}); n.more() || t.left.Load() > 0; {
			if tell != nil {
				tell(int(100*(float64(l.from)+float64(last-l.from)*n.part())), 100*len(l.layers))
			}
			ended, into := !n.more(), make([]unitTimes, len(t.times))
			took, err := l.timedPass(into)
			if err != nil {
				return err
			}
			if n.add(took) && !ended {
				for i := l.from; i < l.to; i++ {
					for op := range into[i] {
						t.times[i][op] = append(t.times[i][op], into[i][op]...)
					}
				}
			}
			if !ended && !n.more() {
				t.left.Add(-1)
			}
		}
		return nil
	})
	if err != nil {
		t.once.Do(func() { t.err = err })
		t.stop()
	}
}

// Passes by the clock: as many as are worth their time.
const (
	fewestPasses = 2
	usualPasses  = 5
	enoughTime   = time.Second            // in passes of a window that count, after which the fewest do
	longPass     = 250 * time.Millisecond // needs no warm-up: what is slower in it only once is a small part
)

// count counts the passes of a window.
type count struct {
	*Config
	warm, counted int
	spent         time.Duration // in those that count
}

// more says that there are passes to do.
func (n *count) more() bool {
	if n.Repeats > 0 {
		return n.counted < n.Repeats
	}
	return n.counted < fewestPasses || n.counted < usualPasses && n.spent < enoughTime
}

// add says whether a pass counts that took so long.
func (n *count) add(took time.Duration) bool {
	// The first pass on a GPU is always one, as it loads the kernels.
	if n.warm < n.Warmup || n.Warmup == 0 && n.warm == 0 && n.counted == 0 && (took < longPass || queues(n.Config)) {
		n.warm++
		return false
	}
	n.counted, n.spent = n.counted+1, n.spent+took
	return true
}

// part is how much of the passes is done.
func (n *count) part() float64 {
	if n.Repeats > 0 {
		return min(1, float64(n.warm+n.counted)/float64(max(n.Warmup, 1)+n.Repeats))
	}
	return min(1, max(float64(n.warm+n.counted)/(1+usualPasses), min(float64(n.counted)/fewestPasses, n.spent.Seconds()/enoughTime.Seconds())))
}
