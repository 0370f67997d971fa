package link_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"penstock.example/internal/engine"
	"penstock.example/internal/link"
	"penstock.example/internal/must"
	"penstock.example/internal/stream"
	"penstock.example/internal/torchtest"
	"penstock.example/torch"
)

// ncclEnd is a process's part: its communicators, a device, a stream for each direction, and a context
// that works on the first.
type ncclEnd struct {
	*link.NCCL
	c       *torch.Ctx
	streams [2]stream.Stream
	over    [2]int // the communicators to and from the other end
}

// move queues a move by a direction: 0 sends, 1 receives.
func (e *ncclEnd) move(direction int, x *torch.Tensor) error {
	return e.Transfer(e.over[direction], e.streams[direction], []*torch.Tensor{x})
}

// finish waits for what was queued on both streams.
func (e *ncclEnd) finish() {
	for _, s := range e.streams {
		stream.End(stream.Host{}, s)
	}
}

// ncclEnds are two processes, which are two GPUs of this one, that can send each other.
func ncclEnds(t *testing.T) (ends [2]*ncclEnd) {
	t.Helper()
	if torch.CUDADevices() < 2 {
		t.Skip("NCCL needs two GPUs")
	}
	var both sync.WaitGroup
	for i := range ends {
		d := torch.CUDA(i)
		ends[i] = &ncclEnd{NCCL: &link.NCCL{}, c: torchtest.New(t, torch.Options{Device: d}),
			streams: [2]stream.Stream{engine.NewStream(d), engine.NewStream(d)}}
		ends[i].c.SetStream(ends[i].streams[0])
	}
	for from := range ends {
		id := must.Get(ends[from].ID())(t)
		for i, e := range ends {
			both.Go(func() {
				direction := 0
				if i != from {
					direction = 1
				}
				var err error
				if e.over[direction], err = e.Open(id, torch.CUDA(i), i == from); err != nil {
					t.Error(err)
				}
			})
		}
		both.Wait()
	}
	t.Cleanup(func() {
		for _, e := range ends {
			both.Go(e.Close)
		}
		both.Wait()
	})
	return ends
}

// both runs f for both ends at once.
func both(ends [2]*ncclEnd, f func(i int, e *ncclEnd)) {
	var all sync.WaitGroup
	for i, e := range ends {
		all.Go(func() { f(i, e) })
	}
	all.Wait()
}

// Abort, from another thread, ends a process that waits for another to join, one that waits for what
// nobody sends, and one that has less room than comes. The process can open communicators afterwards.
func TestNCCLAbort(t *testing.T) {
	ends := ncclEnds(t)
	alone, ended := &link.NCCL{}, make(chan error)
	id := must.Get(alone.ID())(t)
	go func() {
		_, err := alone.Open(id, torch.CUDA(0), true)
		ended <- err
	}()
	time.Sleep(10 * time.Millisecond) // most often it waits by then
	alone.Abort()
	if err := <-ended; err == nil {
		t.Error("a process has joined nobody")
	}
	for name, sent := range map[string]int64{"nothing is sent": 0, "more is sent": 2 << 20,
		"less is sent": 1} {
		ends := ncclEnds(t)
		both(ends, func(i int, e *ncclEnd) {
			x := e.c.Zeros(torch.Float32, 1<<20)
			if i == 0 {
				x = e.c.Zeros(torch.Float32, sent)
			}
			e.c.Synchronize()
			if i == 1 || sent > 0 {
				if err := e.move(i, x); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			time.AfterFunc(50*time.Millisecond, e.Abort)
			e.finish() // it has ended, or was ended
			time.Sleep(100 * time.Millisecond)
			if err := e.move(i, x); !errors.Is(err, link.ErrNCCLClosed) {
				t.Errorf("%s: a transfer over a communicator that was aborted: %v", name, err)
			}
		})
	}
	both(ends, func(i int, e *ncclEnd) {
		x := e.c.Zeros(torch.Float32, 4)
		e.c.Synchronize()
		if err := e.move(i, x); err != nil {
			t.Error(err)
		}
		e.finish()
	})
}
