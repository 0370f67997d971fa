package torch

import (
	"errors"
	"time"

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

// Board has the entries by which the processes of a Gloo find each other: whoever has a Board brings the
// entries of each process to all others. It is safe for concurrent use. Its memory is never freed, as a
// process has one.
type Board struct{ h shim.Board }

// NewBoard makes a board without entries.
func NewBoard() *Board { return &Board{shim.NewBoard()} }

// Take waits for the next entry of this process. ok is false after Close.
func (b *Board) Take() (key string, value []byte, ok bool) { return shim.TakeEntry(b.h) }

// Put adds an entry of another process.
func (b *Board) Put(key string, value []byte) { shim.PutEntry(b.h, key, value) }

// Close ends Take, and an OpenGloo that waits for an entry.
func (b *Board) Close() { shim.CloseBoard(b.h) }

// Gloo is c10d's ProcessGroupGloo: connections between each two of a number of processes. They are
// neither authenticated nor encrypted. It is safe for concurrent use until Close.
type Gloo struct{ h shim.ProcessGroup }

// OpenGloo joins size processes, of which this is number rank. It listens on the interface that has the
// address. It blocks until all are joined, the timeout has passed or the board is closed.
func OpenGloo(b *Board, rank, size int, address string, timeout time.Duration) (*Gloo, error) {
	h, err := shim.OpenGloo(b.h, rank, size, address, timeout)
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

// Receive begins to fill the memory of a dense tensor with another process's bytes.
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
