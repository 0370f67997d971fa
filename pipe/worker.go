package pipe

import (
	"runtime"
	"sync"

	"penstock/torch"
)

// worker serves one device. It is a goroutine locked to an OS thread, so that it has libtorch's
// thread-local state (thread counts, autograd's sequence numbers) and the core set to itself. It
// takes whole lists of actions: a hand-off between threads for each operator would cost 9 us.
type worker struct {
	device  torch.Device
	threads int
	cores   []int
	tag     int64 // of its thread

	jobs   chan func(*torch.Ctx)
	joined sync.WaitGroup
}

func newWorker(device torch.Device, threads int, cores []int, tag int64) (*worker, error) {
	w := &worker{device: device, threads: threads, cores: cores, tag: tag, jobs: make(chan func(*torch.Ctx), 16)}
	ready := make(chan error)
	w.joined.Add(1)
	go w.serve(ready)
	if err := <-ready; err != nil {
		w.joined.Wait()
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
	if len(w.cores) > 0 {
		if err := torch.PinThread(w.cores); err != nil && ready != nil {
			ended = true
			ready <- err
			return
		}
	}
	if ready != nil {
		ready <- nil
	}
	c := torch.NewCtx(torch.Options{Device: w.device, Threads: w.threads})
	defer c.Close()
	for job := range w.jobs {
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
}
