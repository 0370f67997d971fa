// Package shim is the only cgo in Penstock: thin Go wrappers for the C headers of package native,
// the C++ over libtorch. native/shim.h documents the functions and constants. Handles are raw
// words, and every function returns its error in the same call. Package torch adds ownership and
// typed operators.
//
// cgo first links each package alone. Native's functions are unresolved then, and the flag below
// ignores that. In a binary native's flags come last, and make unresolved functions an error.
package shim

/*
#cgo LDFLAGS: -Wl,--unresolved-symbols=ignore-all
#cgo noescape ps_describe
#cgo nocallback ps_describe
#cgo noescape ps_storage
#cgo nocallback ps_storage
#include <stdlib.h>
#include "native/shim.h"
*/
import "C"

import (
	"unsafe"

	_ "penstock.example/internal/shim/native"
)

// Mode has the settings of a call, as ps_mode.
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

// CPUMode returns the default settings for the CPU.
func CPUMode() Mode { return Mode{DeviceIndex: -1, PeerIndex: -1} }

// Handle is one strong reference to a tensor, or 0 for an undefined one.
type Handle uintptr

// Op is an operator. It lives for ever.
type Op unsafe.Pointer

// Memory accounts are numbered: CPUAccounts for CPUs, then from GPUAccount on GPUAccounts for GPUs.
const (
	CPUAccounts = C.PS_GPU_ACCOUNT
	GPUAccount  = C.PS_GPU_ACCOUNT
	GPUAccounts = C.PS_ACCOUNTS - C.PS_GPU_ACCOUNT
)

// OutOfMemory is an Error.Kind.
const OutOfMemory = C.PS_OUT_OF_MEMORY

// Error is an exception of libtorch. Node, Op, Sequence and Ended are set in backward only, and the
// last four fields only if out of memory.
type Error struct {
	Kind     int
	Message  string
	Node, Op string // the autograd node and the operator that were running
	Sequence uint64 // the node's autograd sequence number
	Ended    any    // the value of a recomputation's panic, or Goexit; nil if none failed

	Account                int
	Limit, Live, Requested int64
}

func (e *Error) Error() string { return e.Message }

// toError converts and frees an error of the shim.
func toError(e *C.ps_error) *Error {
	if e == nil {
		return nil
	}
	defer C.ps_error_free(e)
	return &Error{
		Kind: int(e.kind), Message: C.GoString(e.message), Node: C.GoString(e.node), Op: C.GoString(e.op),
		Sequence: uint64(e.sequence), Ended: takeFailure(int64(e.checkpoint)), Account: int(e.account),
		Limit: int64(e.limit), Live: int64(e.live), Requested: int64(e.requested),
	}
}

func mode(m *Mode) *C.ps_mode            { return (*C.ps_mode)(unsafe.Pointer(m)) }
func tensor(h Handle) C.ps_tensor        { return C.ps_tensor(h) }
func dataOf[T any](s []T) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(s)) }

func Version() string            { return C.GoString(C.ps_version()) }
func Devices(deviceType int) int { return int(C.ps_devices(C.int32_t(deviceType))) }

// Environment returns a variable as libtorch sees it, also if the shim has set it, or "".
func Environment(name string) (value string) {
	withC(name, func(c *C.char) { value = C.GoString(C.ps_environment(c)) })
	return value
}

func Find(name, overload string) (op Op, schema string, err *Error) {
	cname, coverload := C.CString(name), C.CString(overload)
	defer C.free(unsafe.Pointer(cname))
	defer C.free(unsafe.Pointer(coverload))
	var handle C.ps_op
	var arguments, returns C.int32_t
	var text *C.char
	err = toError(C.ps_op_find(cname, coverload, &handle, &arguments, &returns, &text))
	return Op(handle), C.GoString(text), err
}

// Call runs op on encoded arguments. It writes the number of result words into out[0], and the
// encoded results after it. m, args and out lie on the heap: see ps_call.
func Call(op Op, m *Mode, args []uint64, out []uint64) *Error {
	return toError(C.ps_call(C.ps_op(op), mode(m), (*C.uint64_t)(dataOf(args)), C.int32_t(len(args)),
		(*C.uint64_t)(dataOf(out)), C.int32_t(len(out))))
}

func TakeList(list uint64, n int) []Handle {
	out := make([]Handle, n)
	C.ps_take_list(C.uint64_t(list), C.int32_t(n), (*C.ps_tensor)(dataOf(out)))
	return out
}

func Retain(h Handle)  { C.ps_retain(tensor(h)) }
func Release(h Handle) { C.ps_release(tensor(h)) }

// Description has properties of a tensor.
type Description struct {
	DType, DeviceType, DeviceIndex int
	Leaf                           bool
	Shape                          []int64
}

func Describe(h Handle) Description {
	var out [C.PS_DESCRIPTION]int64
	C.ps_describe(tensor(h), (*C.int64_t)(unsafe.Pointer(&out[0])))
	return Description{
		DType: int(out[0]), DeviceType: int(out[1]), DeviceIndex: int(out[2]), Leaf: out[3] != 0,
		Shape: append([]int64(nil), out[5:5+out[4]]...),
	}
}

func DType(h Handle) int   { return int(C.ps_dtype(tensor(h))) }
func Numel(h Handle) int64 { return int64(C.ps_numel(tensor(h))) }

// Results of Border.
const (
	Gaps    = C.PS_GAPS
	Dense   = C.PS_DENSE
	Foreign = C.PS_FOREIGN
)

func Border(h Handle, given bool) (int, *Error) {
	var is C.int32_t
	err := toError(C.ps_border(tensor(h), boolean(given), &is))
	return int(is), err
}

func Storage(h Handle) (id uintptr, bytes int64) {
	var n C.int64_t
	id = uintptr(C.ps_storage(tensor(h), &n))
	return id, int64(n)
}

func RequiresGrad(h Handle) bool      { return C.ps_requires_grad(tensor(h)) != 0 }
func Changes(h Handle) int64          { return int64(C.ps_changes(tensor(h))) }
func HoldStorage(h Handle) uintptr    { return uintptr(C.ps_storage_hold(tensor(h))) }
func DropStorage(id uintptr)          { C.ps_storage_drop(C.uint64_t(id)) }
func Hollow(list []Handle)            { C.ps_hollow((*C.ps_tensor)(dataOf(list)), C.int32_t(len(list))) }
func Refill(m *Mode, h Handle) *Error { return toError(C.ps_refill(mode(m), tensor(h))) }

func FromBytes(m *Mode, data []byte, dtype int, shape []int64) (Handle, *Error) {
	var out C.ps_tensor
	e := C.ps_from_bytes(mode(m), dataOf(data), C.int64_t(len(data)), C.int32_t(dtype),
		(*C.int64_t)(dataOf(shape)), C.int32_t(len(shape)), &out)
	return Handle(out), toError(e)
}

func ToBytes(m *Mode, h Handle, data []byte) *Error {
	return toError(C.ps_to_bytes(mode(m), tensor(h), dataOf(data), C.int64_t(len(data))))
}

func CopyFromBytes(m *Mode, h Handle, data []byte) *Error {
	return toError(C.ps_copy_from_bytes(mode(m), tensor(h), dataOf(data), C.int64_t(len(data))))
}

func SetRequiresGrad(h Handle, on bool) *Error {
	return toError(C.ps_set_requires_grad(tensor(h), boolean(on)))
}

func Grad(h Handle) Handle          { return Handle(C.ps_grad(tensor(h))) }
func TakeGrad(h Handle) Handle      { return Handle(C.ps_take_grad(tensor(h))) }
func SetGrad(h, grad Handle) *Error { return toError(C.ps_set_grad(tensor(h), tensor(grad))) }

func Backward(m *Mode, outputs, grads []Handle, keepGraph bool) *Error {
	return toError(C.ps_backward(mode(m), (*C.ps_tensor)(dataOf(outputs)), (*C.ps_tensor)(dataOf(grads)),
		C.int32_t(len(outputs)), boolean(keepGraph)))
}

func PrepareBackward(m *Mode, outputs, grads []Handle) (prepared uint64, err *Error) {
	var out C.uint64_t
	err = toError(C.ps_backward_prepare(mode(m), (*C.ps_tensor)(dataOf(outputs)),
		(*C.ps_tensor)(dataOf(grads)), C.int32_t(len(outputs)), &out))
	return uint64(out), err
}

func RunBackward(m *Mode, prepared uint64) *Error {
	return toError(C.ps_backward_run(mode(m), C.uint64_t(prepared)))
}

func SplitBackward(m *Mode, prepared uint64, first []Handle) (later uint64, err *Error) {
	var out C.uint64_t
	err = toError(C.ps_backward_split(mode(m), C.uint64_t(prepared), (*C.ps_tensor)(dataOf(first)),
		C.int32_t(len(first)), &out))
	return uint64(out), err
}

func DropBackward(prepared uint64) { C.ps_backward_drop(C.uint64_t(prepared)) }
func Sequence() uint64             { return uint64(C.ps_sequence()) }

// Account is the state of a memory account, in bytes. Requested is the process's memory from
// libtorch's allocator for GPUs, and 0 for CPUs.
type Account struct{ Live, Peak, Limit, Cached, Taken, Requested int64 }

func GetAccount(i int) Account {
	var a C.ps_account
	C.ps_account_get(C.int32_t(i), &a)
	return Account{int64(a.live), int64(a.peak), int64(a.limit), int64(a.cached), int64(a.taken),
		int64(a.requested)}
}

func SetLimit(i int, bytes int64)  { C.ps_account_limit(C.int32_t(i), C.int64_t(bytes)) }
func ResetPeak(i int)              { C.ps_account_reset_peak(C.int32_t(i)) }
func RaisePeak(i int, bytes int64) { C.ps_account_raise_peak(C.int32_t(i), C.int64_t(bytes)) }
func OwnPeak(i int) int64          { return int64(C.ps_account_own(C.int32_t(i))) }

func PrepareProducts(m *Mode) *Error { return toError(C.ps_prepare_products(mode(m))) }
func FMAPeak() float64               { return float64(C.ps_fma_peak()) } // see shim.h
func Trim(i int)                     { C.ps_account_trim(C.int32_t(i)) }
func TrimHeap()                      { C.ps_heap_trim() }

func PinThread(cpus []int32) *Error {
	return toError(C.ps_pin_thread((*C.int32_t)(dataOf(cpus)), C.int32_t(len(cpus))))
}

func TagThread(tag int64)   { C.ps_tag_thread(C.int64_t(tag)) }
func ThreadTag() int64      { return int64(C.ps_thread_tag()) }
func Library() string       { return C.GoString(C.ps_library()) }
func BLASVersion() string   { return C.GoString(C.ps_blas_version()) }
func OneDNNVersion() string { return C.GoString(C.ps_onednn_version()) }

func BLASCore() string          { return C.GoString(C.ps_blas_core()) }
func BetterBLASCore() string    { return C.GoString(C.ps_blas_better_core()) }
func ATenKernels() string       { return C.GoString(C.ps_aten_kernels()) }
func BetterATenKernels() string { return C.GoString(C.ps_aten_better_kernels()) }
func OneDNNISA() int            { return int(C.ps_onednn_isa()) }
func BetterOneDNNISA() int      { return int(C.ps_onednn_better_isa()) }

func UseBLASCore(core string) (err *Error) {
	withC(core, func(c *C.char) { err = toError(C.ps_blas_use_core(c)) })
	return err
}

func boolean(b bool) C.int32_t {
	if b {
		return 1
	}
	return 0
}

// Tags of the argument encoding; see shim.h.
const (
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
