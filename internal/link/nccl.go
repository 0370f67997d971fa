package link

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"penstock.example/internal/engine"
	"penstock.example/internal/shim"
	"penstock.example/internal/stream"
	"penstock.example/torch"
)

// NCCL is the [Communicators] of the CUDA devices of this process. A communicator has no tags and does its
// moves in the order in which they are queued. So each has one direction: two directions would have to take
// turns. The zero NCCL is ready. All methods are safe for concurrent use, but the caller orders transfers
// over one communicator.
type NCCL struct {
	mu    sync.RWMutex // held for reading while a call uses communicators
	comms []shim.NCCL
	stop  atomic.Int32
	ended bool // guarded by mu
}

// ErrNCCLClosed is the error of calls after Abort or Close.
var ErrNCCLClosed = errors.New("the NCCL communicators were closed")

// ID fails in a build without NCCL.
func (n *NCCL) ID() ([]byte, error) {
	id, err := shim.NewNCCLID()
	return id[:], err
}

func (n *NCCL) Open(id []byte, d torch.Device, sends bool) (number int, err error) {
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

// Transfer does not wait for the moves. The tensors must not change before an event of the stream says so.
func (n *NCCL) Transfer(number int, on stream.Stream, tensors []*torch.Tensor) error {
	n.mu.RLock()
	defer n.mu.RUnlock()
	switch {
	case n.ended:
		return ErrNCCLClosed
	case len(tensors) == 0:
		return nil
	}
	var handles []shim.Handle
	for _, t := range tensors {
		handles = append(handles, t.Handle())
	}
	return shim.TransferNCCL(slices.Repeat([]shim.NCCL{n.comms[number]}, len(tensors)), handles,
		slices.Repeat([]int64{on.(engine.Stream).ID()}, len(tensors)), &n.stop)
}

// Err is nil while communicators are opened or closed. Between processes of one machine NCCL does not notice
// the loss of the other.
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

// Abort may leave tensors that are received in part.
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

// GPU returns an id of a CUDA device that is unique among all machines; "" for a CPU, and in a build without
// NCCL.
func GPU(d torch.Device) string {
	if d.Kind != torch.KindCUDA || d.Usable() != nil || shim.NCCLVersion() == 0 {
		return ""
	}
	id, _ := shim.GPUID(d.Index)
	return id
}
