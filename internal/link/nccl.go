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

// NCCL is the communicators of this process: each carries tensors' memory from a CUDA device of one
// process to one of another. It has one direction: NCCL keeps the order of what is queued on a
// communicator and knows no tags, so that two directions in one would have to take turns. They fail
// together: Abort ends all. The zero NCCL has none. All methods are safe for concurrent use, but of
// transfers over one communicator the caller says which is first.
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

// ID makes what both ends of a communicator know it by. It fails in a build without NCCL.
func (n *NCCL) ID() ([]byte, error) {
	id, err := shim.NewNCCLID()
	return id[:], err
}

// Open joins the other end, for a device of this process, that sends or receives. It blocks until
// that has called Open with the same id, or Abort is called. It returns the number of the
// communicator. Processes that have several open them in the same order: see rounds.go.
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

// Transfer queues moves, all at once, so that none has to wait for another one to be queued. It does
// not wait for them: an event of the stream does. Each tensor stays as it is until then. The process
// at the other end queues as many of the same sizes in the same order: NCCL compares nothing.
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

// Err is a failure since a transfer was queued, such as a broken connection, or nil. NCCL does not
// notice that the other process is gone where both are on one machine. It does not wait for Close, which
// may wait for ever until Abort is called: while communicators are opened or closed it is nil.
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

// Abort ends calls of Open and Close, and transfers that are under way, whose memory may have been
// written in part, and closes all communicators. Nothing else ends a transfer whose other process is
// gone.
func (n *NCCL) Abort() {
	n.stop.Store(1)
	n.end(shim.AbortNCCL)
}

// Close closes all communicators when the transfers that were queued are done. The other ends are
// closed meanwhile.
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
