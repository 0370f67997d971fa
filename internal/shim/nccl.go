package shim

/*
#include "native/shim.h"
*/
import "C"

import (
	"sync/atomic"
	"unsafe"
)

// NCCLID is what two processes know a communicator by.
type NCCLID = [C.PS_NCCL_ID]byte

// NCCL is a communicator of two processes, for what one of them sends.
type NCCL uintptr

// NewNCCLID makes an id, for one communicator.
func NewNCCLID() (id NCCLID, err *Error) {
	err = taken(C.ps_nccl_id((*C.uint8_t)(unsafe.Pointer(&id[0]))))
	return id, err
}

// OpenNCCL blocks until both processes have opened the communicator, or stop is not 0. The sender has rank 0.
func OpenNCCL(id *NCCLID, rank, device int, stop *atomic.Int32) (c NCCL, err *Error) {
	var out C.ps_nccl
	err = taken(C.ps_nccl_open((*C.uint8_t)(unsafe.Pointer(&id[0])), C.int32_t(rank), C.int32_t(device), (*C.int32_t)(unsafe.Pointer(stop)), &out))
	return NCCL(out), err
}

// TransferNCCL queues transfers of tensors' memory on a stream, all at once. The rank in a communicator says its direction.
func TransferNCCL(comms []NCCL, tensors []Handle, device int, stream int64) *Error {
	return taken(C.ps_nccl_transfer((*C.ps_nccl)(words(comms)), (*C.ps_tensor)(words(tensors)), C.int32_t(len(comms)), C.int32_t(device), C.int64_t(stream)))
}

// NCCLError is what has failed on a communicator meanwhile, or nil.
func NCCLError(c NCCL) *Error { return taken(C.ps_nccl_error(C.ps_nccl(c))) }

// StopNCCL ends a TransferNCCL that waits for the other process, on any goroutine.
func StopNCCL(c NCCL) { C.ps_nccl_stop(C.ps_nccl(c)) }

// AbortNCCL ends what was queued, and frees the communicator.
func AbortNCCL(c NCCL) { C.ps_nccl_abort(C.ps_nccl(c)) }

// CloseNCCL frees a communicator when what was queued is done.
func CloseNCCL(c NCCL) { C.ps_nccl_close(C.ps_nccl(c)) }
