package link

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"penstock.example/internal/engine"
	"penstock.example/internal/shim"
	"penstock.example/internal/stream"
	"penstock.example/torch"
)

// NCCL is the [Communicators] of the CUDA devices of this process. NCCL keeps the order of what is queued on
// a communicator and knows no tags, so each has one direction: two in one would have to take turns. The zero
// NCCL has none. All methods are safe for concurrent use, but of transfers over one communicator the caller
// says which is first.
type NCCL struct {
	mu    sync.RWMutex // held for reading by calls that communicators must outlive
	comms []shim.NCCL
	stop  atomic.Int32
	ended bool // guarded by mu
}

// Move is a send or a receive of the memory of a dense tensor, queued on a stream of its device. The
// communicator says which it is.
type Move struct {
	Over   int // what Open returned
	On     stream.Stream
	Tensor *torch.Tensor
}

// ErrNCCLClosed is the error of calls after Abort or Close.
var ErrNCCLClosed = errors.New("the NCCL communicators were closed")

// ID fails in a build without NCCL.
func (n *NCCL) ID() ([]byte, error) {
	id, err := shim.NewNCCLID()
	return id[:], err
}

func (n *NCCL) Open(id []byte, d torch.Device, sends bool) (over int, err error) {
	if err := d.Usable(); err != nil {
		return 0, fmt.Errorf("NCCL: %w", err)
	}
	rank := 1
	if sends {
		rank = 0
	}
	comm, err := shim.OpenNCCL((*shim.NCCLID)(id), rank, d.Index, &n.stop)
	if err != nil {
		return 0, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ended || n.stop.Load() != 0 {
		shim.AbortNCCL([]shim.NCCL{comm})
		return 0, ErrNCCLClosed
	}
	n.comms = append(n.comms, comm)
	return len(n.comms) - 1, nil
}

// Transfer does not wait for the moves: an event of the stream does. Each tensor stays as it is until then.
func (n *NCCL) Transfer(moves []Move) error {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if n.ended {
		return ErrNCCLClosed
	}
	var comms []shim.NCCL
	var tensors []shim.Handle
	var streams []int64
	for _, m := range moves {
		comms, tensors = append(comms, n.comms[m.Over]), append(tensors, m.Tensor.Handle())
		streams = append(streams, m.On.(engine.Stream).ID())
	}
	return shim.TransferNCCL(comms, tensors, streams, &n.stop)
}

// Err is nil while communicators are opened or closed. NCCL does not notice that the other process is gone
// where both are on one machine.
func (n *NCCL) Err() error {
	if !n.mu.TryRLock() {
		if n.stop.Load() != 0 {
			return ErrNCCLClosed
		}
		return nil
	}
	defer n.mu.RUnlock()
	if n.ended {
		return ErrNCCLClosed
	}
	for _, c := range n.comms {
		if err := shim.NCCLError(c); err != nil {
			return err
		}
	}
	return nil
}

// Abort leaves memory that has been written in part.
func (n *NCCL) Abort() {
	n.stop.Store(1)
	n.end(shim.AbortNCCL)
}

func (n *NCCL) Close() { n.end(func(comms []shim.NCCL) { shim.CloseNCCL(comms, &n.stop) }) }

func (n *NCCL) end(f func([]shim.NCCL)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.ended {
		f(n.comms)
	}
	n.ended, n.comms = true, nil
}

// GPU is what tells a CUDA device from all others, of any machine; "" for a CPU, and in a build
// without NCCL.
func GPU(d torch.Device) string {
	if d.Kind != torch.KindCUDA || d.Usable() != nil || shim.NCCLVersion() == 0 {
		return ""
	}
	id, _ := shim.GPUID(d.Index) // "" where it fails
	return id
}
