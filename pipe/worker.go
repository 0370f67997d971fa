package pipe

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"penstock.example/internal/stream"
	"penstock.example/torch"
)

// worker serves one device. It is a goroutine locked to an OS thread, so that it has libtorch's
// thread-local state (thread counts, autograd's sequence numbers) and the core set to itself. It
// takes whole lists of actions: a hand-off between threads for each operator would cost 9 us.
type worker struct {
	device  torch.Device
	threads int
	cores   []int
	tag     int64         // of its thread
	stream  stream.Stream // of its work
	sums    stream.Stream // of sums over replicas
	given   stream.Stream // in tests, instead of the device's default stream

	jobs   chan func(*torch.Ctx)
	joined sync.WaitGroup
}

func newWorker(device torch.Device, threads int, cores []int, tag int64) (*worker, error) {
	w := &worker{device: device, threads: threads, cores: cores, tag: tag, jobs: make(chan func(*torch.Ctx), 16)}
	if err := torch.Try(func() { w.stream, w.sums = device.NewStream(), device.NewStream() }); err != nil {
		return nil, err
	}
	ready := make(chan error)
	w.joined.Add(1)
	go w.serve(ready)
	if err := <-ready; err != nil {
		w.joined.Wait()
		w.closeStreams()
		return nil, err
	}
	return w, nil
}

// serve runs jobs. It never unlocks its thread, so that the thread ends with the goroutine, and its
// core set with it.
func (w *worker) serve(ready chan<- error) {
	runtime.LockOSThread()
	torch.TagThread(w.tag)
	ended := false
	defer func() {
		if !ended {
			go w.serve(nil) // a layer called Goexit; its job has already said so
			return
		}
		w.joined.Done()
	}()
	var err error
	if len(w.cores) > 0 {
		err = torch.PinThread(w.cores)
	}
	c := torch.NewCtx(torch.Options{Device: w.device, Threads: w.threads})
	defer c.Close()
	c.SetStream(w.stream)
	if err == nil {
		err = torch.Try(c.PrepareProducts)
	}
	if ready != nil {
		if ready <- err; err != nil {
			ended = true
			return
		}
	}
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
	w.closeStreams()
}

func (w *worker) closeStreams() {
	torch.CloseStream(w.stream)
	torch.CloseStream(w.sums)
}

// A call that waits for the workers of a pipe must not be made on one of them: the worker would
// wait for itself. Nor may it be made where that worker waits for the caller by way of other pipes:
// a layer of pipe P runs Q, and a layer of Q runs P.
//
//	P's worker ──waits for──► Q's worker ──waits for──► P's worker
//
// So the threads of workers are tagged with their pipe. A call on a tagged thread is an edge from
// the caller's pipe to the called pipe until it returns. An edge that closes a cycle is refused.
// Every run needs all workers of its pipe, so every cycle is a deadlock, and there are no other
// deadlocks between pipes.
//
// A goroutine that a layer starts and waits for has no tag. It could inherit one, as it inherits
// pprof's labels. But a layer may also start a goroutine that it does not wait for, whose calls are
// allowed.

// tags counts pipes. Every pipe has a tag of its own.
var tags atomic.Int64

// nestedCalls counts the calls that are being made on pipes' workers, from one pipe to another.
var nestedCalls = callGraph{calls: map[int64]map[int64]int{}}

type callGraph struct {
	mu    sync.Mutex
	calls map[int64]map[int64]int
}

// begin adds a call, and refuses it if to waits for from already.
func (w *callGraph) begin(from, to int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.reaches(to, from) {
		return false
	}
	if w.calls[from] == nil {
		w.calls[from] = map[int64]int{}
	}
	w.calls[from][to]++
	return true
}

func (w *callGraph) end(from, to int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.calls[from][to]--; w.calls[from][to] == 0 {
		delete(w.calls[from], to)
	}
	if len(w.calls[from]) == 0 {
		delete(w.calls, from)
	}
}

// reaches says whether from is to, or waits for it directly or by way of others. There are no
// cycles.
func (w *callGraph) reaches(from, to int64) bool {
	if from == to {
		return true
	}
	for next := range w.calls[from] {
		if w.reaches(next, to) {
			return true
		}
	}
	return false
}

// outside begins a call that waits for the workers of the pipe; leave ends it. It refuses a call on
// a worker that they wait for.
func (p *Pipe) outside(call string) (leave func(), err error) {
	from := torch.ThreadTag()
	if from == 0 {
		return func() {}, nil
	}
	if !nestedCalls.begin(from, p.tag) {
		where := "a worker of this pipe"
		if from != p.tag {
			where = "a worker of another pipe, which this pipe waits for"
		}
		return nil, fmt.Errorf("%w: %s was called by a layer, a loss or an update on %s, and would wait for ever; call "+
			"it when the run or OnStages has returned", ErrNested, call, where)
	}
	return func() { nestedCalls.end(from, p.tag) }, nil
}

// enter begins a run; leave ends it. Close waits for it.
func (p *Pipe) enter(call string) (leave func(), err error) {
	out, err := p.outside(call)
	if err != nil {
		return nil, err
	}
	p.submit.Lock()
	defer p.submit.Unlock()
	if p.closed {
		out()
		return nil, ErrClosed
	}
	p.open.Add(1)
	return func() {
		p.open.Done()
		out()
	}, nil
}

// PanicError is a panic of a user's layer or loss, with its stack.
type PanicError = torch.PanicError

// ErrGoexit says that a layer ended the worker's goroutine with runtime.Goexit. The worker is
// replaced.
var ErrGoexit = errors.New("a layer called runtime.Goexit")

// cause makes an error of what recover returned. Nil means that the goroutine ended with
// runtime.Goexit.
func cause(recovered any) error {
	if recovered == nil {
		return ErrGoexit
	}
	return torch.Caught(recovered)
}
