package shim

/*
#include <stdlib.h>
#include "native/c10d.h"
*/
import "C"

import (
	"time"
	"unsafe"
)

// Board has the entries with which the processes of a Gloo find each other. Its owner takes this
// process's entries and puts all others. It is safe for concurrent use, and never freed.
type Board uintptr

// Gloo is c10d's ProcessGroupGloo: a connection between each two processes, neither authenticated
// nor encrypted. It is safe for concurrent use until Close.
type Gloo uintptr

// Transfer is a send or a receive under way. It holds the memory of its tensor.
type Transfer uintptr

// withC calls f with s as a C string.
func withC(s string, f func(*C.char)) {
	c := C.CString(s)
	defer C.free(unsafe.Pointer(c))
	f(c)
}

func failure(e *C.ps_error) error {
	if err := toError(e); err != nil {
		return err
	}
	return nil
}

func NewBoard() Board { return Board(C.ps_board_new()) }

// Take waits for the next entry of this process. ok is false after Close.
func (b Board) Take() (key string, value []byte, ok bool) {
	var k *C.char
	var data unsafe.Pointer
	var n C.int64_t
	if C.ps_board_take(C.ps_board(b), &k, &data, &n) == 0 {
		return "", nil, false
	}
	defer C.free(unsafe.Pointer(k))
	defer C.free(data)
	return C.GoString(k), C.GoBytes(data, C.int(n)), true
}

// Put adds an entry of another process.
func (b Board) Put(key string, value []byte) {
	withC(key, func(k *C.char) { C.ps_board_put(C.ps_board(b), k, dataOf(value), C.int64_t(len(value))) })
}

// Close ends Take, and an OpenGloo that waits for an entry.
func (b Board) Close() { C.ps_board_close(C.ps_board(b)) }

// OpenGloo joins size processes as number rank. It listens on the interface that has the address.
// It blocks until all have joined, the timeout has passed or the board is closed.
func OpenGloo(b Board, rank, size int, address string, timeout time.Duration) (g Gloo, err error) {
	withC(address, func(address *C.char) {
		var out C.ps_gloo
		err = failure(C.ps_gloo_open(C.ps_board(b), C.int32_t(rank), C.int32_t(size), address,
			C.int64_t(timeout.Milliseconds()), &out))
		g = Gloo(out)
	})
	return g, err
}

// Close closes all connections. All transfers have been freed.
func (g Gloo) Close() { C.ps_gloo_close(C.ps_gloo(g)) }

// Send begins to send the memory of a dense tensor to another process. The send ends after the
// receive with the same tag has begun. A receive of too few bytes crashes its process.
func (g Gloo) Send(h Handle, to, tag int) (Transfer, error) {
	var out C.ps_transfer
	err := failure(C.ps_gloo_send(C.ps_gloo(g), tensor(h), C.int32_t(to), C.int32_t(tag), &out))
	return Transfer(out), err
}

// Receive begins to fill the memory of a dense tensor with another process's bytes.
func (g Gloo) Receive(h Handle, from, tag int) (Transfer, error) {
	var out C.ps_transfer
	err := failure(C.ps_gloo_receive(C.ps_gloo(g), tensor(h), C.int32_t(from), C.int32_t(tag), &out))
	return Transfer(out), err
}

// Wait blocks until the transfer has ended. done is false if it was aborted. An error means a
// broken connection. Wait is called once at most.
func (t Transfer) Wait() (done bool, err error) {
	var out C.int32_t
	err = failure(C.ps_transfer_wait(C.ps_transfer(t), &out))
	return out != 0, err
}

// Abort ends Wait, now or later. It may be called from another goroutine, until Free.
func (t Transfer) Abort() { C.ps_transfer_abort(C.ps_transfer(t)) }

// Free drops the transfer. A message that has not arrived is lost, and the tensor is left alone.
func (t Transfer) Free() { C.ps_transfer_free(C.ps_transfer(t)) }

// Memory returns a view of a dense tensor's memory, in the order of addresses.
func Memory(h Handle) (Handle, *Error) {
	var out C.ps_tensor
	err := toError(C.ps_memory(tensor(h), &out))
	return Handle(out), err
}
