package torch

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"penstock.example/internal/shim"
	"penstock.example/internal/stream"
)

// NCCLID is what the two processes of an NCCL know it by. One of them makes it and gives it to the
// other.
type NCCLID = shim.NCCLID

// NCCL carries tensors' memory from a CUDA device of one process to one of another. It has one
// direction: NCCL keeps the order of what is queued on a communicator and knows no tags, so that
// two directions in one would have to take turns. All methods are safe for concurrent use.
type NCCL struct {
	device Device
	sends  bool

	mu     sync.Mutex
	handle shim.NCCL // 0 when it was closed
	open   atomic.Uintptr
	stop   atomic.Int32
	ending sync.Once
}

// ErrNCCLClosed is the error of a transfer over an NCCL that was closed.
var ErrNCCLClosed = errors.New("torch: this NCCL communicator was closed")

// NewNCCLID makes an id. It fails in a build without NCCL.
func NewNCCLID() (NCCLID, error) {
	id, err := shim.NewNCCLID()
	return id, ncclFailed(err)
}

// NewNCCL is one end, for a device of this process, that sends or receives. Call Open.
func NewNCCL(d Device, sends bool) *NCCL { return &NCCL{device: d, sends: sends} }

// Open joins the other end. It blocks until that has called Open with the same id, or Abort is
// called. Processes that have several open them in the same order, a process one at a time: see
// schedule.Rounds.
func (n *NCCL) Open(id NCCLID) error {
	if err := n.device.Usable(); err != nil {
		return fmt.Errorf("torch: NCCL: %w", err)
	}
	rank := 1
	if n.sends {
		rank = 0
	}
	handle, err := shim.OpenNCCL(&id, rank, n.device.Index, &n.stop)
	if err != nil {
		return ncclFailed(err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stop.Load() != 0 {
		shim.AbortNCCL(handle)
		return ErrNCCLClosed
	}
	n.handle = handle
	n.open.Store(uintptr(handle))
	return nil
}

// TransferNCCL queues the transfers of the memory of tensors on a stream of their device, all at
// once, so that none has to wait for another one to be queued. It does not wait for them: an event
// of the stream does. Each tensor is dense and stays as it is until then. The communicators are
// different ones of one device.
func TransferNCCL(s stream.Stream, over []*NCCL, tensors []*Tensor) error {
	own, ok := s.(Stream)
	if !ok || len(over) != len(tensors) {
		return fmt.Errorf("torch: NCCL: %d tensors for %d communicators on stream %v; want one each, on a stream of a CUDA device", len(tensors), len(over), s)
	}
	handles := make([]shim.NCCL, len(over))
	for i, n := range over {
		n.mu.Lock()
		defer n.mu.Unlock()
		if handles[i] = n.handle; n.handle == 0 {
			return ErrNCCLClosed
		}
	}
	return ncclFailed(shim.TransferNCCL(handles, handlesOf(tensors), own.device.Index, own.id))
}

// Err is what has failed since the last transfer was queued, such as the other process, or nil.
func (n *NCCL) Err() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.handle == 0 {
		return ErrNCCLClosed
	}
	return ncclFailed(shim.NCCLError(n.handle))
}

// Abort ends Open and transfers that are under way, whose memory may have been written in part, and
// closes the communicator. Nothing else ends a transfer whose other process is gone.
func (n *NCCL) Abort() {
	n.stop.Store(1)
	n.end(true, shim.AbortNCCL)
}

// Close closes the communicator when the transfers that were queued are done.
func (n *NCCL) Close() { n.end(false, shim.CloseNCCL) }

func (n *NCCL) end(stop bool, f func(shim.NCCL)) {
	n.ending.Do(func() {
		if h := n.open.Load(); h != 0 && stop {
			shim.StopNCCL(shim.NCCL(h)) // a transfer that waits has the lock
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.handle != 0 {
			f(n.handle)
			n.handle = 0
		}
	})
}

func ncclFailed(err *shim.Error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("torch: %s", err.Message)
}
