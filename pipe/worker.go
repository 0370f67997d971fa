package pipe

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"penstock.example/internal/engine"
	"penstock.example/internal/stream"
	"penstock.example/internal/system"
	"penstock.example/torch"
)

// worker serves one device. It is a goroutine locked to an OS thread, so that it has libtorch's
// thread-local state (thread counts, autograd's sequence numbers) and the core set to itself. A job
// is a whole list of actions, because a hand-off between threads takes 9 us.
type worker struct {
	device  torch.Device
	threads int
	cores   []int
	tag     int64         // of its thread
	stream  stream.Stream // of actions
	sums    stream.Stream // of sums over replicas
	caller  stream.Stream // of the calls that give it jobs: the device's default stream
	jobs    chan func(*torch.Ctx)
	joined  sync.WaitGroup
}

func newWorker(device torch.Device, threads int, cores []int, tag int64) (*worker, error) {
	w := &worker{device: device, threads: threads, cores: cores, tag: tag,
		caller: engine.DefaultStream(device), jobs: make(chan func(*torch.Ctx), 16)}
	err := torch.Try(func() { w.stream, w.sums = engine.NewStream(device), engine.NewStream(device) })
	if err != nil {
		return nil, err
	}
	ready := make(chan error)
	w.joined.Add(1)
	go w.serve(ready)
	if err := <-ready; err != nil {
		w.stop()
		return nil, err
	}
	return w, nil
}

// serve runs jobs. It never unlocks its thread, which, with its core set, ends with the goroutine.
func (w *worker) serve(ready chan<- error) {
	runtime.LockOSThread()
	system.TagThread(w.tag)
	ended := false
	defer func() {
		if !ended {
			panic("pipe: a layer, a loss or an update called runtime.Goexit on its worker")
		}
		w.joined.Done()
	}()
	c := torch.NewCtx(torch.Options{Device: w.device, Threads: w.threads})
	defer c.Close()
	c.SetStream(w.stream)
	var err error
	if len(w.cores) > 0 {
		err = system.PinThread(w.cores)
	}
	if err == nil {
		err = torch.Try(func() { engine.PrepareProducts(c) })
	}
	ready <- err
	for job := range w.jobs {
		c.SetStream(w.stream)
		c.SetGrad(false)
		c.SetSeed(0)
		job(c)
		c.Close()
	}
	ended = true
}

// stop ends the worker after its jobs and waits for it.
func (w *worker) stop() {
	close(w.jobs)
	w.joined.Wait()
	engine.CloseStream(w.stream)
	engine.CloseStream(w.sums)
}

// tags counts pipes. Every pipe marks the threads of its workers with its own tag.
var tags atomic.Int64

// refuseNested refuses a call on a worker of the pipe that would wait for that worker.
func (p *Pipe) refuseNested(call string) error {
	if system.ThreadTag() != p.tag {
		return nil
	}
	return fmt.Errorf("%w: %s on a worker of this pipe would wait for ever; call it after the run or "+
		"OnStages has returned", ErrNested, call)
}

// enter begins a call, and leave ends it. Close waits for calls.
func (p *Pipe) enter(call string) (leave func(), err error) {
	if err := p.refuseNested(call); err != nil {
		return nil, err
	}
	p.submit.Lock()
	defer p.submit.Unlock()
	if p.closed {
		return nil, ErrClosed
	}
	p.calls.Add(1)
	return p.calls.Done, nil
}

// PanicError is a panic of a user's layer or loss, with its stack.
type PanicError = torch.PanicError
