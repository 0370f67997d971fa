package torch

import (
	"errors"
	"sync"
	"time"

	"penstock.example/internal/arg"
	"penstock.example/internal/shim"
)

// InMemoryOrder returns a view of one dimension of a dense tensor, in the order of addresses. A
// tensor is dense if its elements fill a range of memory, whatever the order of its dimensions.
func (c *Ctx) InMemoryOrder(t *Tensor) *Tensor {
	h, err := shim.Memory(t.given("in_memory_order"))
	if err != nil {
		panic(c.failed("in_memory_order", []*Tensor{t}, err))
	}
	return c.own(h)
}

// Store is c10d's TCPStore: keys and values by which processes find each other. It is neither
// authenticated nor encrypted. It is safe for concurrent use until Close.
type Store struct {
	h      shim.Store
	mu     sync.Mutex
	users  int  // calls of OpenGloo under way
	closed bool // Close was called
}

// OpenStore connects to the store at host and port, which server also starts, on all of the
// machine's interfaces. It fails at once if nobody listens there. If what listens is no store, or
// that of another libtorch, it fails within the timeout, which holds for each later call as well.
func OpenStore(host string, port int, server bool, timeout time.Duration) (*Store, error) {
	h, err := shim.OpenStore(host, port, server, timeout)
	if err != nil {
		return nil, plain(err)
	}
	return &Store{h: h}, nil
}

// Set sets the value of a key.
func (s *Store) Set(key string, value []byte) error { return plain(shim.StoreSet(s.h, key, value)) }

// Add adds to the number of a key, 0 at first, and returns the sum.
func (s *Store) Add(key string, n int64) (int64, error) {
	sum, err := shim.StoreAdd(s.h, key, n)
	return sum, plain(err)
}

// Get returns the value of a key, or nil if it has none yet. It does not wait for one.
func (s *Store) Get(key string) ([]byte, error) {
	value, err := shim.StoreGet(s.h, key)
	return value, plain(err)
}

// Interrupt ends an OpenGloo that waits for a process to set its keys, now or later.
func (s *Store) Interrupt() { shim.InterruptStore(s.h) }

// Close closes the connection, and ends the server if this store has started it. It does not wait for
// an OpenGloo, which it interrupts: the store is then closed when that returns.
func (s *Store) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed = true; s.users > 0 {
		s.Interrupt()
		return
	}
	shim.CloseStore(s.h)
}

// use keeps the store open, or reports that it is closed. Its counterpart is leave.
func (s *Store) use() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.users++
	return true
}

func (s *Store) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users--; s.closed && s.users == 0 {
		shim.CloseStore(s.h)
	}
}

// Gloo is c10d's ProcessGroupGloo: connections between each two of a number of processes. They are
// neither authenticated nor encrypted. It is safe for concurrent use until Close.
type Gloo struct{ h shim.ProcessGroup }

// OpenGloo joins size processes, of which this is number rank. They find each other by keys of a
// store below a prefix. It listens on the interface that has the address. It blocks until all are
// joined, the timeout has passed or the store is interrupted.
func OpenGloo(s *Store, prefix string, rank, size int, address string, timeout time.Duration) (*Gloo, error) {
	if err := arg.Given(s, "torch: OpenGloo: the store", "one of torch.OpenStore"); err != nil {
		return nil, err
	}
	if !s.use() {
		return nil, errors.New("torch: OpenGloo: the store is closed; want it open until OpenGloo has returned")
	}
	defer s.leave()
	h, err := shim.OpenGloo(s.h, prefix, rank, size, address, timeout)
	if err != nil {
		return nil, plain(err)
	}
	return &Gloo{h}, nil
}

// Close closes all connections. All transfers have to be freed.
func (g *Gloo) Close() { shim.CloseGloo(g.h) }

// Send begins to send the memory of a dense tensor to another process. It ends after the other
// process has begun to receive it under the same tag. Sizes are not checked: a receive of fewer
// bytes than are sent ends the receiving process.
func (g *Gloo) Send(t *Tensor, to, tag int) (*Transfer, error) {
	h, err := shim.Send(g.h, t.given("send"), to, tag)
	if err != nil {
		return nil, plain(err)
	}
	return &Transfer{h}, nil
}

// Receive begins to fill the memory of a dense tensor with what another process sends.
func (g *Gloo) Receive(t *Tensor, from, tag int) (*Transfer, error) {
	h, err := shim.Receive(g.h, t.given("receive"), from, tag)
	if err != nil {
		return nil, plain(err)
	}
	return &Transfer{h}, nil
}

// Transfer is a send or a receive under way. It holds the memory of its tensor.
type Transfer struct{ h shim.Transfer }

// Wait blocks until the transfer has ended. done is false if it was aborted. An error says that the
// connection is broken. Wait is called once at most.
func (t *Transfer) Wait() (done bool, err error) {
	done, e := shim.WaitTransfer(t.h)
	return done, plain(e)
}

// Abort ends Wait, now or later. It may be called from another goroutine, until Free.
func (t *Transfer) Abort() { shim.AbortTransfer(t.h) }

// Free drops the transfer. A message that is not there yet is lost, and nothing is written to the
// tensor any more.
func (t *Transfer) Free() { shim.FreeTransfer(t.h) }

// plain is an error of the shim as a Go error.
func plain(err *shim.Error) error {
	if err == nil {
		return nil
	}
	return errors.New(err.Message)
}
