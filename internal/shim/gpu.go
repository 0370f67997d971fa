package shim

/*
#include "native/shim.h"
*/
import "C"

import (
	"sync/atomic"
	"unsafe"
)

// NCCLID is the id with which two processes open a communicator.
type NCCLID = [C.PS_NCCL_ID]byte

// NCCL is a communicator between a process that sends and a process that receives.
type NCCL uintptr

func NewNCCLID() (id NCCLID, err error) {
	err = failure(C.ps_nccl_id((*C.uint8_t)(unsafe.Pointer(&id[0]))))
	return id, err
}

func OpenNCCL(id *NCCLID, rank, device int, stop *atomic.Int32) (c NCCL, err error) {
	var out C.ps_nccl
	err = failure(C.ps_nccl_open((*C.uint8_t)(unsafe.Pointer(&id[0])), C.int32_t(rank), C.int32_t(device),
		flag(stop), &out))
	return NCCL(out), err
}

func TransferNCCL(comms []NCCL, tensors []Handle, streams []int64, stop *atomic.Int32) error {
	return failure(C.ps_nccl_transfer((*C.ps_nccl)(dataOf(comms)), (*C.ps_tensor)(dataOf(tensors)),
		(*C.int64_t)(dataOf(streams)), C.int32_t(len(comms)), flag(stop)))
}

func NCCLError(c NCCL) error { return failure(C.ps_nccl_error(C.ps_nccl(c))) }
func AbortNCCL(comms []NCCL) { C.ps_nccl_abort((*C.ps_nccl)(dataOf(comms)), C.int32_t(len(comms))) }

func CloseNCCL(comms []NCCL, stop *atomic.Int32) {
	C.ps_nccl_close((*C.ps_nccl)(dataOf(comms)), C.int32_t(len(comms)), flag(stop))
}

func GPUID(device int) (id string, err error) {
	var out [33]C.char
	err = failure(C.ps_gpu_uuid(C.int32_t(device), &out[0]))
	return C.GoString(&out[0]), err
}

func flag(stop *atomic.Int32) *C.int32_t { return (*C.int32_t)(unsafe.Pointer(stop)) }

// Event is a point in the work of a stream. The owner frees it.
type Event uintptr

func OpenStream(deviceType, device int) (stream int64, err *Error) {
	var out C.int64_t
	err = toError(C.ps_stream_open(C.int32_t(deviceType), C.int32_t(device), &out))
	return int64(out), err
}

func RecordEvent(deviceType, device int, stream int64, timed bool) (e Event, err *Error) {
	var out C.ps_event
	err = toError(C.ps_event_record(C.int32_t(deviceType), C.int32_t(device), C.int64_t(stream),
		boolean(timed), &out))
	return Event(out), err
}

func WaitEvent(e Event, deviceType, device int, stream int64) *Error {
	return toError(C.ps_event_wait(C.ps_event(e), C.int32_t(deviceType), C.int32_t(device),
		C.int64_t(stream)))
}

func SynchronizeEvent(e Event) *Error { return toError(C.ps_event_synchronize(C.ps_event(e))) }

func EventSeconds(from, to Event) (seconds float64, err *Error) {
	var out C.double
	err = toError(C.ps_event_seconds(C.ps_event(from), C.ps_event(to), &out))
	return float64(out), err
}

func FreeEvent(e Event) { C.ps_event_free(C.ps_event(e)) }

func GPUModel(index int) (name string, err *Error) {
	var text [256]C.char
	err = toError(C.ps_gpu_model(C.int32_t(index), &text[0], C.int32_t(len(text))))
	return C.GoString(&text[0]), err
}

func UnusedOfGPU(index int) (bytes int64, err *Error) {
	var out C.int64_t
	err = toError(C.ps_gpu_unused(C.int32_t(index), &out))
	return int64(out), err
}

func RefuseGPUWaits(on bool) { C.ps_gpu_refuse_waits(boolean(on)) }
func CUDAVersion() int       { return int(C.ps_cuda_version()) }
func NCCLVersion() int       { return int(C.ps_nccl_version()) }
func GPULibraries() string   { return C.GoString(C.ps_gpu_libraries()) }

func SetGPUNumerics(deterministic, tf32 bool) {
	C.ps_gpu_numerics(boolean(deterministic), boolean(tf32))
}

func GPUNumerics() int { return int(C.ps_gpu_numerics_in_force()) }

// Bits of GPUNumerics.
const (
	Deterministic    = C.PS_DETERMINISTIC
	TF32Convolutions = C.PS_TF32_CONVOLUTIONS
	TF32Products     = C.PS_TF32_PRODUCTS
)
