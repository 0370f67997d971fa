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

func NewNCCLID() (id NCCLID, err error) {
	err = failure(C.ps_nccl_id((*C.uint8_t)(unsafe.Pointer(&id[0]))))
	return id, err
}

func OpenNCCL(id *NCCLID, rank, device int, stop *atomic.Int32) (c NCCL, err error) {
	var out C.ps_nccl
	err = failure(C.ps_nccl_open((*C.uint8_t)(unsafe.Pointer(&id[0])), C.int32_t(rank), C.int32_t(device),
		word(stop), &out))
	return NCCL(out), err
}

func TransferNCCL(comms []NCCL, tensors []Handle, streams []int64, stop *atomic.Int32) error {
	return failure(C.ps_nccl_transfer((*C.ps_nccl)(words(comms)), (*C.ps_tensor)(words(tensors)),
		(*C.int64_t)(words(streams)), C.int32_t(len(comms)), word(stop)))
}

func NCCLError(c NCCL) error { return failure(C.ps_nccl_error(C.ps_nccl(c))) }
func AbortNCCL(comms []NCCL) { C.ps_nccl_abort((*C.ps_nccl)(words(comms)), C.int32_t(len(comms))) }

func CloseNCCL(comms []NCCL, stop *atomic.Int32) {
	C.ps_nccl_close((*C.ps_nccl)(words(comms)), C.int32_t(len(comms)), word(stop))
}

func GPUID(device int) (id string, err error) {
	var out [33]C.char
	err = failure(C.ps_gpu_uuid(C.int32_t(device), &out[0]))
	return C.GoString(&out[0]), err
}

func word(stop *atomic.Int32) *C.int32_t { return (*C.int32_t)(unsafe.Pointer(stop)) }
