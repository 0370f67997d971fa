package torch_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"penstock.example/internal/stream"
	"penstock.example/internal/torchtest"
	"penstock.example/torch"
)

// ncclEnd is a process's part: a device, a stream, and a context that works on it.
type ncclEnd struct {
	c *torch.Ctx
	s stream.Stream
}

// ncclEnds are the parts of two processes, which are two GPUs of this one.
func ncclEnds(t *testing.T) (ends [2]ncclEnd) {
	t.Helper()
	if torch.CUDADevices() < 2 {
		t.Skip("NCCL needs two GPUs")
	}
	for i := range ends {
		d := torch.CUDA(i)
		ends[i] = ncclEnd{torchtest.New(t, torch.Options{Device: d}), d.NewStream()}
		ends[i].c.SetStream(ends[i].s)
	}
	return ends
}

// ncclPair is an open communicator from one GPU to the other.
func ncclPair(t *testing.T, from, to torch.Device) (sends, receives *torch.NCCL) {
	t.Helper()
	id, err := torch.NewNCCLID()
	if err != nil {
		t.Fatal(err)
	}
	sends, receives = torch.NewNCCL(from, true), torch.NewNCCL(to, false)
	var both sync.WaitGroup
	for _, n := range []*torch.NCCL{sends, receives} {
		both.Go(func() {
			if err := n.Open(id); err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	t.Cleanup(func() {
		both.Go(sends.Close)
		both.Go(receives.Close)
		both.Wait()
	})
	return sends, receives
}

// What is queued on a communicator arrives in the order in which it was sent, although nothing has a tag.
func TestNCCLKeepsTheOrder(t *testing.T) {
	ends := ncclEnds(t)
	sends, receives := ncclPair(t, torch.CUDA(0), torch.CUDA(1))
	var both sync.WaitGroup
	both.Go(func() {
		for i := range 3 {
			x := torch.From(ends[0].c, []float32{float32(i), float32(10 * i)})
			if err := torch.TransferNCCL(ends[0].s, []*torch.NCCL{sends}, []*torch.Tensor{x}); err != nil {
				t.Error(err)
			}
		}
		ends[0].c.Synchronize()
	})
	both.Go(func() {
		var got []float32
		for range 3 {
			x := ends[1].c.Zeros(torch.Float32, 2)
			if err := torch.TransferNCCL(ends[1].s, []*torch.NCCL{receives}, []*torch.Tensor{x}); err != nil {
				t.Error(err)
			}
			ends[1].c.Synchronize()
			got = append(got, torch.Values[float32](x)...)
		}
		if !slices.Equal(got, []float32{0, 0, 1, 10, 2, 20}) {
			t.Errorf("got %v", got)
		}
	})
	both.Wait()
}

// Two processes that both send 8 MiB and receive as much wait for nobody, if each queues the two at once.
func TestNCCLInBothDirections(t *testing.T) {
	ends := ncclEnds(t)
	var of [2][]*torch.NCCL
	a, b := ncclPair(t, torch.CUDA(0), torch.CUDA(1))
	c, d := ncclPair(t, torch.CUDA(1), torch.CUDA(0))
	of[0], of[1] = []*torch.NCCL{a, d}, []*torch.NCCL{b, c}
	var both sync.WaitGroup
	for i, e := range ends {
		both.Go(func() {
			own, other := e.c.Fill_(e.c.Empty(torch.Float32, 2<<20), float64(i+1)), e.c.Zeros(torch.Float32, 2<<20)
			tensors := []*torch.Tensor{own, other}
			if i == 1 {
				slices.Reverse(tensors)
			}
			if err := torch.TransferNCCL(e.s, of[i], tensors); err != nil {
				t.Error(err)
				return
			}
			e.c.Synchronize()
			if v := torch.Values[float32](other); slices.Min(v) != float32(2-i) || slices.Max(v) != float32(2-i) {
				t.Errorf("GPU %d received %v to %v, want %d", i, slices.Min(v), slices.Max(v), 2-i)
			}
		})
	}
	both.Wait()
}

// Abort ends a process that waits for another to join, and one that waits for what nobody sends. The
// process can open communicators afterwards.
func TestNCCLAbort(t *testing.T) {
	ends := ncclEnds(t)
	id, err := torch.NewNCCLID()
	if err != nil {
		t.Fatal(err)
	}
	alone, ended := torch.NewNCCL(torch.CUDA(0), true), make(chan error)
	go func() { ended <- alone.Open(id) }()
	time.Sleep(10 * time.Millisecond) // most often it waits by then
	alone.Abort()
	if err := <-ended; err == nil {
		t.Error("a process has joined nobody")
	}

	sends, receives := ncclPair(t, torch.CUDA(0), torch.CUDA(1))
	x := ends[1].c.Zeros(torch.Float32, 4)
	if err := torch.TransferNCCL(ends[1].s, []*torch.NCCL{receives}, []*torch.Tensor{x}); err != nil {
		t.Fatal(err)
	}
	receives.Abort()
	ends[1].c.Synchronize() // the receive has ended
	if err := torch.TransferNCCL(ends[1].s, []*torch.NCCL{receives}, []*torch.Tensor{x}); !errors.Is(err, torch.ErrNCCLClosed) {
		t.Errorf("a transfer over a communicator that was aborted: %v", err)
	}
	sends.Abort()
	ncclPair(t, torch.CUDA(0), torch.CUDA(1))
}
