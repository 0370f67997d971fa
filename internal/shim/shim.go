// Package shim is the only cgo in Penstock: a thin Go face on the plain C headers of package native,
// which is the C++ over libtorch.
//
// It has no opinions. Handles are raw words, every function returns its error in the same call, and
// what a call runs under is an argument (Mode). Ownership, errors people read and typed operators are
// package torch's.
//
// cgo links each package by itself, which leaves native's functions unresolved here. A binary is linked
// with native's flags last, so that there it is an error.
package shim

/*
#cgo LDFLAGS: -Wl,--unresolved-symbols=ignore-all
#cgo noescape ps_describe
#cgo nocallback ps_describe
#cgo noescape ps_storage
#cgo nocallback ps_storage
#cgo noescape ps_account_lend
#cgo nocallback ps_account_lend
#include <stdlib.h>
#include "native/shim.h"
*/
import "C"

import (
	"unsafe"

	_ "penstock.example/internal/shim/native"
)

// Mode is what a call runs under. It mirrors ps_mode.
type Mode struct {
	Grad        int32
	Account     int32
	Threads     int32
	DeviceType  int32
	DeviceIndex int32
	Autocast    int32
	PeerIndex   int32
	Stream      int64
	PeerStream  int64
}

// CPUMode is a mode on the CPU under which nothing else is set.
func CPUMode() Mode { return Mode{DeviceIndex: -1, PeerIndex: -1} }

// Handle is one strong reference to a tensor, or 0 for an undefined one.
type Handle uintptr

// Op is a looked-up operator. It lives for ever.
type Op unsafe.Pointer

// Memory accounts are numbered. CPUs have the first CPUAccounts; GPUs have GPUAccounts more, from
// GPUAccount on.
const (
	CPUAccounts = C.PS_GPU_ACCOUNT
	GPUAccount  = C.PS_GPU_ACCOUNT
	GPUAccounts = C.PS_ACCOUNTS - C.PS_GPU_ACCOUNT
)

// Kinds of Error.
const (
	Failed      = C.PS_FAILED
	OutOfMemory = C.PS_OUT_OF_MEMORY
	BadArgument = C.PS_BAD_ARGUMENT
)

// Error is what libtorch threw.
type Error struct {
	Kind     int
	Message  string
	Node, Op string // backward only: the autograd node and the operator that were running
	Sequence uint64 // backward only: the node's autograd sequence number
	// backward only: what a recomputation panicked with, or Goexit; nil if none failed
	Ended                  any
	Account                int // out of memory only, as the next three
	Limit, Live, Requested int64
}

func (e *Error) Error() string { return e.Message }

func taken(e *C.ps_error) *Error {
	if e == nil {
		return nil
	}
	defer C.ps_error_free(e)
	return &Error{
		Kind: int(e.kind), Message: C.GoString(e.message), Node: C.GoString(e.node), Op: C.GoString(e.op),
		Sequence: uint64(e.sequence), Ended: endedWith(int64(e.checkpoint)), Account: int(e.account),
		Limit: int64(e.limit), Live: int64(e.live), Requested: int64(e.requested),
	}
}

func mode(m *Mode) *C.ps_mode { return (*C.ps_mode)(unsafe.Pointer(m)) }

func tensor(h Handle) C.ps_tensor { return C.ps_tensor(h) }

func words[T any](s []T) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(s)) }

// Version is the version of the libtorch the shim was compiled against.
func Version() string { return C.GoString(C.ps_version()) }

// Devices is how many devices of a type (c10::DeviceType) the linked libtorch can run on. Of the CPU it is 1.
func Devices(deviceType int) int { return int(C.ps_devices(C.int32_t(deviceType))) }

// GPUModel is a GPU's name, as its driver has it. It takes nothing of the GPU.
func GPUModel(index int) (name string, err *Error) {
	var text [256]C.char
	err = taken(C.ps_gpu_model(C.int32_t(index), &text[0], C.int32_t(len(text))))
	return C.GoString(&text[0]), err
}

// UnusedOfGPU is the bytes of a GPU that nobody has taken, when the calling thread has taken what
// products need.
func UnusedOfGPU(index int) (bytes int64, err *Error) {
	var out C.int64_t
	err = taken(C.ps_gpu_unused(C.int32_t(index), &out))
	return int64(out), err
}

// RefuseGPUWaits has libtorch's operators fail that wait for a GPU, of all threads, or no longer.
func RefuseGPUWaits(on bool) { C.ps_gpu_refuse_waits(boolean(on)) }

// CUDAVersion is the version of CUDA that this build was compiled with, such as 12040, or 0 if it is without.
func CUDAVersion() int { return int(C.ps_cuda_version()) }

// NCCLVersion is the version of NCCL that is linked, such as 22203, or 0.
func NCCLVersion() int { return int(C.ps_nccl_version()) }

// GPULibraries is such as "cuBLAS 13.1.0, cuDNN 9.19.0", or "" without CUDA.
func GPULibraries() string { return C.GoString(C.ps_gpu_libraries()) }

// Environment is a variable as libtorch reads it, with what the shim has set, or "".
func Environment(name string) string {
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	return C.GoString(C.ps_environment(c))
}

// Find looks an operator up by name ("aten::add") and overload ("Tensor", or "" for the default one).
func Find(name, overload string) (op Op, schema string, err *Error) {
	cname, coverload := C.CString(name), C.CString(overload)
	defer C.free(unsafe.Pointer(cname))
	defer C.free(unsafe.Pointer(coverload))
	var handle C.ps_op
	var arguments, returns C.int32_t
	var text *C.char
	if err := taken(C.ps_op_find(cname, coverload, &handle, &arguments, &returns, &text)); err != nil {
		return nil, "", err
	}
	return Op(handle), C.GoString(text), nil
}

// Call runs op on encoded arguments and writes encoded results into out, after their number of words in
// out[0]. m, args and out lie on the heap: see ps_call.
func Call(op Op, m *Mode, args []uint64, out []uint64) *Error {
	return taken(C.ps_call(C.ps_op(op), mode(m), (*C.uint64_t)(words(args)), C.int32_t(len(args)),
		(*C.uint64_t)(words(out)), C.int32_t(len(out))))
}

// TakeList fetches the n handles of a tensor-list result and frees its array.
func TakeList(list uint64, n int) []Handle {
	out := make([]Handle, n)
	C.ps_take_list(C.uint64_t(list), C.int32_t(n), (*C.ps_tensor)(words(out)))
	return out
}

// Retain adds a reference.
func Retain(h Handle) { C.ps_retain(tensor(h)) }

// Release drops a reference.
func Release(h Handle) { C.ps_release(tensor(h)) }

// Description is what a tensor says of itself.
type Description struct {
	DType, DeviceType, DeviceIndex int
	RequiresGrad, Leaf, Contiguous bool
	StorageBytes                   int64
	Storage                        uintptr // identity of its storage
	Shape                          []int64
}

// Describe reads a tensor's description.
func Describe(h Handle) Description {
	var out [C.PS_DESCRIPTION]int64
	C.ps_describe(tensor(h), (*C.int64_t)(unsafe.Pointer(&out[0])))
	return Description{
		DType: int(out[0]), DeviceType: int(out[1]), DeviceIndex: int(out[2]),
		RequiresGrad: out[3] != 0, Leaf: out[4] != 0, Contiguous: out[5] != 0,
		StorageBytes: out[6], Storage: uintptr(out[7]),
		Shape: append([]int64(nil), out[9:9+out[8]]...),
	}
}

// DType is a tensor's c10::ScalarType.
func DType(h Handle) int { return int(C.ps_dtype(tensor(h))) }

// Dims is how many dimensions a tensor has.
func Dims(h Handle) int { return int(C.ps_dims(tensor(h))) }

// Numel is how many elements a tensor has.
func Numel(h Handle) int64 { return int64(C.ps_numel(tensor(h))) }

// SameShape says whether two tensors have the same sizes.
func SameShape(a, b Handle) bool { return C.ps_same_shape(tensor(a), tensor(b)) != 0 }

// What Border says of a tensor.
const (
	Gaps    = C.PS_GAPS
	Dense   = C.PS_DENSE
	Foreign = C.PS_FOREIGN
)

// Border says what a tensor is as it goes on to another layer. If Dense, a gradient that comes back to it is
// made dense too. If it was given, and its maker does not expect that, it is Foreign.
func Border(h Handle, given bool) (int, *Error) {
	var is C.int32_t
	err := taken(C.ps_border(tensor(h), boolean(given), &is))
	return int(is), err
}

// Storage is the identity of a tensor's storage, and its bytes.
func Storage(h Handle) (id uintptr, bytes int64) {
	var n C.int64_t
	id = uintptr(C.ps_storage(tensor(h), &n))
	return id, int64(n)
}

// RequiresGrad says whether autograd follows a tensor.
func RequiresGrad(h Handle) bool { return C.ps_requires_grad(tensor(h)) != 0 }

// Changes is how often the memory behind a tensor was changed in place.
func Changes(h Handle) int64 { return int64(C.ps_changes(tensor(h))) }

// HoldStorage is the identity of a tensor's storage, which no other gets until DropStorage.
func HoldStorage(h Handle) uintptr { return uintptr(C.ps_storage_hold(tensor(h))) }

// DropStorage gives an identity back.
func DropStorage(id uintptr) { C.ps_storage_drop(C.uint64_t(id)) }

// Hollow frees the memory of tensors, each a handle of its own, that nobody else uses.
func Hollow(list []Handle) { C.ps_hollow((*C.ps_tensor)(words(list)), C.int32_t(len(list))) }

// Refill gives a tensor whose memory was freed zeros.
func Refill(m *Mode, h Handle) *Error { return taken(C.ps_refill(mode(m), tensor(h))) }

// FromBytes makes a tensor from row-major data, which is copied.
func FromBytes(m *Mode, data []byte, dtype int, shape []int64) (Handle, *Error) {
	var out C.ps_tensor
	e := C.ps_from_bytes(mode(m), words(data), C.int64_t(len(data)), C.int32_t(dtype),
		(*C.int64_t)(words(shape)), C.int32_t(len(shape)), &out)
	return Handle(out), taken(e)
}

// ToBytes copies a tensor's elements, row-major, into data.
func ToBytes(m *Mode, h Handle, data []byte) *Error {
	return taken(C.ps_to_bytes(mode(m), tensor(h), words(data), C.int64_t(len(data))))
}

// CopyFromBytes overwrites a tensor's elements, row-major.
func CopyFromBytes(m *Mode, h Handle, data []byte) *Error {
	return taken(C.ps_copy_from_bytes(mode(m), tensor(h), words(data), C.int64_t(len(data))))
}

// SetRequiresGrad marks a leaf.
func SetRequiresGrad(h Handle, on bool) *Error {
	return taken(C.ps_set_requires_grad(tensor(h), boolean(on)))
}

// Grad returns a new reference to a tensor's gradient, or 0.
func Grad(h Handle) Handle { return Handle(C.ps_grad(tensor(h))) }

// TakeGrad moves a tensor's gradient out, or returns 0 if it has none.
func TakeGrad(h Handle) Handle { return Handle(C.ps_take_grad(tensor(h))) }

// SetGrad replaces a tensor's gradient; 0 drops it.
func SetGrad(h, grad Handle) *Error { return taken(C.ps_set_grad(tensor(h), tensor(grad))) }

// Backward runs the graph behind outputs from the given gradients (0 = ones for a scalar) and adds into
// the leaves' gradients.
func Backward(m *Mode, outputs, grads []Handle, keepGraph bool) *Error {
	return taken(C.ps_backward(mode(m), (*C.ps_tensor)(words(outputs)), (*C.ps_tensor)(words(grads)),
		C.int32_t(len(outputs)), boolean(keepGraph)))
}

// PrepareBackward makes a backward that holds the gradients, none 0, and the graph, and not the outputs.
func PrepareBackward(m *Mode, outputs, grads []Handle) (prepared uint64, err *Error) {
	var out C.uint64_t
	err = taken(C.ps_backward_prepare(mode(m), (*C.ps_tensor)(words(outputs)), (*C.ps_tensor)(words(grads)),
		C.int32_t(len(outputs)), &out))
	return uint64(out), err
}

// RunBackward runs a prepared backward, once. It frees it, also when it fails.
func RunBackward(m *Mode, prepared uint64) *Error {
	return taken(C.ps_backward_run(mode(m), C.uint64_t(prepared)))
}

// SplitBackward takes gradients of weights out of a prepared backward, for a second one that is run
// after it. Those of gates and of the leaves that are given stay.
func SplitBackward(m *Mode, prepared uint64, first []Handle) (later uint64, err *Error) {
	var out C.uint64_t
	err = taken(C.ps_backward_split(mode(m), C.uint64_t(prepared), (*C.ps_tensor)(words(first)),
		C.int32_t(len(first)), &out))
	return uint64(out), err
}

// DropBackward frees a prepared backward that is not run.
func DropBackward(prepared uint64) { C.ps_backward_drop(C.uint64_t(prepared)) }

// Sequence is the calling thread's next autograd sequence number.
func Sequence() uint64 { return uint64(C.ps_sequence()) }

// Account is the state of a memory account, in bytes. Requested is what all of the process has asked
// libtorch's allocator for a GPU for, and not freed, and 0 elsewhere.
type Account struct{ Live, Peak, Limit, Cached, Taken, Requested int64 }

// GetAccount reads an account.
func GetAccount(i int) Account {
	var a C.ps_account
	C.ps_account_get(C.int32_t(i), &a)
	return Account{int64(a.live), int64(a.peak), int64(a.limit), int64(a.cached), int64(a.taken),
		int64(a.requested)}
}

// SetLimit limits an account; 0 removes the limit.
func SetLimit(i int, bytes int64) { C.ps_account_limit(C.int32_t(i), C.int64_t(bytes)) }

// ResetPeak lowers an account's peak to what is live.
func ResetPeak(i int) { C.ps_account_reset_peak(C.int32_t(i)) }

// RaisePeak raises an account's peak to at least so many bytes.
func RaisePeak(i int, bytes int64) { C.ps_account_raise_peak(C.int32_t(i), C.int64_t(bytes)) }

// Lend says that a tensor's block waits for another device's worker. It returns the loan and its bytes,
// or 0 if the block is not the account's.
func Lend(account int, h Handle) (loan uint64, bytes int64) {
	var n C.int64_t
	loan = uint64(C.ps_account_lend(C.int32_t(account), C.ps_tensor(h), &n))
	return loan, int64(n)
}

// EndLoan says that a block waits no more, if it was not freed.
func EndLoan(account int, loan uint64) { C.ps_account_end_loan(C.int32_t(account), C.uint64_t(loan)) }

// OwnPeak is the most bytes that were live at a time, lent ones aside, since it was asked last.
func OwnPeak(account int) int64 { return int64(C.ps_account_own(C.int32_t(account))) }

// SetGPUNumerics sets whether GPUs compute the same bits each time, and whether they may multiply and
// convolve float32 in TF32. It must come before the first product.
func SetGPUNumerics(deterministic, tf32 bool) {
	C.ps_gpu_numerics(boolean(deterministic), boolean(tf32))
}

// GPUNumerics is how GPUs compute, as libtorch has it: bits of those below.
func GPUNumerics() int { return int(C.ps_gpu_numerics_in_force()) }

// What GPUNumerics tells.
const (
	Deterministic    = C.PS_DETERMINISTIC
	TF32Convolutions = C.PS_TF32_CONVOLUTIONS
	TF32Products     = C.PS_TF32_PRODUCTS
)

// PrepareProducts takes what products of the calling thread on the mode's stream of a GPU keep, on no
// account.
func PrepareProducts(m *Mode) *Error { return taken(C.ps_prepare_products(mode(m))) }

// Trim gives an account's cached blocks back to the system.
func Trim(i int) { C.ps_account_trim(C.int32_t(i)) }

// TrimHeap gives back to the system what malloc keeps free.
func TrimHeap() { C.ps_heap_trim() }

// PinThread binds the calling OS thread to a set of cores.
func PinThread(cpus []int32) *Error {
	return taken(C.ps_pin_thread((*C.int32_t)(words(cpus)), C.int32_t(len(cpus))))
}

// TagThread marks the calling OS thread with a number. A thread that a recomputation moves to takes
// over the number.
func TagThread(tag int64) { C.ps_tag_thread(C.int64_t(tag)) }

// ThreadTag is the number that the calling OS thread is marked with; 0 is none.
func ThreadTag() int64 { return int64(C.ps_thread_tag()) }

// Library is the file of libtorch that this process has loaded, or "".
func Library() string { return C.GoString(C.ps_library()) }

// BLASVersion is such as "OpenBLAS 0.3.21" or "MKL 2024.2", or "".
func BLASVersion() string { return C.GoString(C.ps_blas_version()) }

// OneDNNVersion is such as "3.13.3", or "".
func OneDNNVersion() string { return C.GoString(C.ps_onednn_version()) }

// LinearBy names what computes a linear layer of so many rows: "Penstock", "oneDNN" or "BLAS".
func LinearBy(rows, out, in int) string {
	return C.GoString(C.ps_linear_by(C.int64_t(rows), C.int64_t(out), C.int64_t(in)))
}

// BLASCore names the BLAS kernels in use, or "".
func BLASCore() string { return C.GoString(C.ps_blas_core()) }

// BetterBLASCore names the kernels that this processor should use instead, or "".
func BetterBLASCore() string { return C.GoString(C.ps_blas_better_core()) }

// ATenKernels names the instruction set that ATen's own kernels use, or "".
func ATenKernels() string { return C.GoString(C.ps_aten_kernels()) }

// BetterATenKernels names the instruction set that they should use on this processor, or "".
func BetterATenKernels() string { return C.GoString(C.ps_aten_better_kernels()) }

// OneDNNISA is the dnnl_cpu_isa_t that oneDNN's kernels use at most, or -1.
func OneDNNISA() int { return int(C.ps_onednn_isa()) }

// BetterOneDNNISA is the least that they should use on this processor, or 0 if they do.
func BetterOneDNNISA() int { return int(C.ps_onednn_better_isa()) }

// UseBLASCore changes OpenBLAS's kernels. It must come before any BLAS call.
func UseBLASCore(core string) *Error {
	c := C.CString(core)
	defer C.free(unsafe.Pointer(c))
	return taken(C.ps_blas_use_core(c))
}

func boolean(b bool) C.int32_t {
	if b {
		return 1
	}
	return 0
}

// Tags of the argument encoding; see shim.h.
const (
	Default = C.PS_DEFAULT
	None    = C.PS_NONE
	Tensor  = C.PS_TENSOR
	Int     = C.PS_INT
	Double  = C.PS_DOUBLE
	Bool    = C.PS_BOOL
	Ints    = C.PS_INTS
	Doubles = C.PS_DOUBLES
	Tensors = C.PS_TENSORS
	String  = C.PS_STRING
	Seed    = C.PS_SEED
	Device  = C.PS_DEVICE
)
