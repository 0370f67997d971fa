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

// Board has entries by which processes find each other, ProcessGroup is a ProcessGroupGloo, Transfer a
// send or a receive under way.
type (
	Board        uintptr
	ProcessGroup uintptr
	Transfer     uintptr
)

// text is s for C, until f returns.
func text(s string, f func(*C.char)) {
	c := C.CString(s)
	defer C.free(unsafe.Pointer(c))
	f(c)
}

// NewBoard makes a board, which is never freed.
func NewBoard() Board { return Board(C.ps_board_new()) }

// TakeEntry waits for the next entry of this process. ok is false after CloseBoard.
func TakeEntry(b Board) (key string, value []byte, ok bool) {
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

// PutEntry gives an entry of another process.
func PutEntry(b Board, key string, value []byte) {
	text(key, func(key *C.char) { C.ps_board_put(C.ps_board(b), key, words(value), C.int64_t(len(value))) })
}

// CloseBoard ends TakeEntry, and an OpenGloo that waits for an entry.
func CloseBoard(b Board) { C.ps_board_close(C.ps_board(b)) }

// OpenGloo joins processes that have a board each. It listens on the interface of an address.
func OpenGloo(b Board, rank, size int, address string, timeout time.Duration) (g ProcessGroup, err *Error) {
	text(address, func(address *C.char) {
		var out C.ps_gloo
		err = taken(C.ps_gloo_open(C.ps_board(b), C.int32_t(rank), C.int32_t(size), address,
			C.int64_t(timeout.Milliseconds()), &out))
		g = ProcessGroup(out)
	})
	return g, err
}

// CloseGloo closes all connections. No transfer may be left.
func CloseGloo(g ProcessGroup) { C.ps_gloo_close(C.ps_gloo(g)) }

// Memory is a view of a dense tensor's memory, in the order of addresses.
func Memory(h Handle) (Handle, *Error) {
	var out C.ps_tensor
	err := taken(C.ps_memory(tensor(h), &out))
	return Handle(out), err
}

// Send begins to send a dense tensor's memory.
func Send(g ProcessGroup, h Handle, to, tag int) (Transfer, *Error) {
	var out C.ps_transfer
	err := taken(C.ps_gloo_send(C.ps_gloo(g), tensor(h), C.int32_t(to), C.int32_t(tag), &out))
	return Transfer(out), err
}

// Receive begins to fill a dense tensor's memory.
func Receive(g ProcessGroup, h Handle, from, tag int) (Transfer, *Error) {
	var out C.ps_transfer
	err := taken(C.ps_gloo_receive(C.ps_gloo(g), tensor(h), C.int32_t(from), C.int32_t(tag), &out))
	return Transfer(out), err
}

// WaitTransfer blocks until a transfer has ended: done says that all bytes are there, and not
// AbortTransfer ended it. It is called once at most.
func WaitTransfer(t Transfer) (done bool, err *Error) {
	var out C.int32_t
	err = taken(C.ps_transfer_wait(C.ps_transfer(t), &out))
	return out != 0, err
}

// AbortTransfer ends a wait, now or later, from any goroutine.
func AbortTransfer(t Transfer) { C.ps_transfer_abort(C.ps_transfer(t)) }

// FreeTransfer drops a transfer.
func FreeTransfer(t Transfer) { C.ps_transfer_free(C.ps_transfer(t)) }
