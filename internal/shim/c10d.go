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

// Store is a c10d TCPStore, ProcessGroup a ProcessGroupGloo, Transfer a send or a receive under way.
type (
	Store        uintptr
	ProcessGroup uintptr
	Transfer     uintptr
)

// text is s for C, until f returns.
func text(s string, f func(*C.char)) {
	c := C.CString(s)
	defer C.free(unsafe.Pointer(c))
	f(c)
}

// OpenStore connects to a store, which a server also starts.
func OpenStore(host string, port int, server bool, timeout time.Duration) (s Store, err *Error) {
	text(host, func(host *C.char) {
		var out C.ps_store
		err = taken(C.ps_store_open(host, C.int32_t(port), boolean(server), C.int64_t(timeout.Milliseconds()), &out))
		s = Store(out)
	})
	return s, err
}

// StoreSet sets the value of a key.
func StoreSet(s Store, key string, value []byte) (err *Error) {
	text(key, func(key *C.char) {
		err = taken(C.ps_store_set(C.ps_store(s), key, words(value), C.int64_t(len(value))))
	})
	return err
}

// StoreAdd adds to the number that a key has and returns the sum.
func StoreAdd(s Store, key string, n int64) (sum int64, err *Error) {
	text(key, func(key *C.char) {
		var out C.int64_t
		err = taken(C.ps_store_add(C.ps_store(s), key, C.int64_t(n), &out))
		sum = int64(out)
	})
	return sum, err
}

// StoreGet returns the value of a key, or nil if there is none yet.
func StoreGet(s Store, key string) (value []byte, err *Error) {
	text(key, func(key *C.char) {
		var data unsafe.Pointer
		var n C.int64_t
		if err = taken(C.ps_store_get(C.ps_store(s), key, &data, &n)); data != nil {
			value = append([]byte{}, unsafe.Slice((*byte)(data), n)...)
			C.free(data)
		}
	})
	return value, err
}

// InterruptStore ends an OpenGloo that waits for a key of the store.
func InterruptStore(s Store) { C.ps_store_interrupt(C.ps_store(s)) }

// CloseStore closes the connection, and ends the server that it has started.
func CloseStore(s Store) { C.ps_store_close(C.ps_store(s)) }

// OpenGloo joins processes by keys of a store, below a prefix. It listens on the interface of an address.
func OpenGloo(s Store, prefix string, rank, size int, address string, timeout time.Duration) (g ProcessGroup, err *Error) {
	text(prefix, func(prefix *C.char) {
		text(address, func(address *C.char) {
			var out C.ps_gloo
			err = taken(C.ps_gloo_open(C.ps_store(s), prefix, C.int32_t(rank), C.int32_t(size), address, C.int64_t(timeout.Milliseconds()), &out))
			g = ProcessGroup(out)
		})
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

// WaitTransfer blocks until a transfer has ended: done says that all bytes are there, and not AbortTransfer ended it. It is called once at most.
func WaitTransfer(t Transfer) (done bool, err *Error) {
	var out C.int32_t
	err = taken(C.ps_transfer_wait(C.ps_transfer(t), &out))
	return out != 0, err
}

// AbortTransfer ends a wait, now or later, from any goroutine.
func AbortTransfer(t Transfer) { C.ps_transfer_abort(C.ps_transfer(t)) }

// FreeTransfer drops a transfer.
func FreeTransfer(t Transfer) { C.ps_transfer_free(C.ps_transfer(t)) }
