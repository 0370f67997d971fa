package torch

import (
	"fmt"
	"strconv"
	"strings"

	"penstock/internal/shim"
)

// Kind is a kind of device.
type Kind int

// The kinds. The values are c10::DeviceType's.
const (
	KindCPU  Kind = 0
	KindCUDA Kind = 1
)

// String is "cpu", "cuda", or what else libtorch may have put a tensor on.
func (k Kind) String() string {
	switch k {
	case KindCPU:
		return "cpu"
	case KindCUDA:
		return "cuda"
	case 14:
		return "meta"
	}
	return fmt.Sprintf("device type %d", int(k))
}

// Device is a place that tensors live on, with an account of its memory: bytes live, their peak, and an optional limit.
// The zero value is cpu:0.
//
// Several CPU devices are several accounts on one machine, so that a pipeline over cores or sockets is real: a tensor made
// on cpu:1 is charged to cpu:1 wherever and whenever it is freed. The account counts the bytes that were asked for, exactly: parameters,
// gradients, optimizer state, activations and operators' workspaces alike. Accounts belong to the process; all methods are safe
// for concurrent use. Memory of CUDA devices is libtorch's to manage and is not counted here.
type Device struct {
	Kind  Kind
	Index int
}

// MaxCPU is the number of CPU devices a process can have.
const MaxCPU = shim.Accounts - 1

// CPU returns the i-th CPU device, 0 <= i < MaxCPU.
func CPU(i int) Device { return Device{KindCPU, i} }

// CUDA returns the i-th CUDA device.
func CUDA(i int) Device { return Device{KindCUDA, i} }

// ParseDevice reads "cpu", "cpu:1" or "cuda:0".
func ParseDevice(s string) (Device, error) {
	name, index, has := strings.Cut(s, ":")
	d := Device{}
	switch name {
	case "cpu":
	case "cuda":
		d.Kind = KindCUDA
	default:
		return d, fmt.Errorf("torch: unknown device %q: want cpu:N or cuda:N", s)
	}
	if has {
		i, err := strconv.Atoi(index)
		if err != nil || i < 0 || d.Kind == KindCPU && i >= MaxCPU {
			return d, fmt.Errorf("torch: device %q: the index must be a number from 0 to %d", s, MaxCPU-1)
		}
		d.Index = i
	}
	return d, nil
}

// String is the device as ParseDevice reads it, such as "cpu:1".
func (d Device) String() string { return fmt.Sprintf("%s:%d", d.Kind, d.Index) }

// Available says whether the linked libtorch can use the device.
func (d Device) Available() bool { return shim.HasDevice(int(d.Kind)) }

// account is the shim's account of the device. Account 0 is for allocations that no Ctx asked for.
func (d Device) account() int {
	if d.Kind != KindCPU {
		return 0
	}
	if d.Index < 0 || d.Index >= MaxCPU {
		panic(fmt.Sprintf("torch: no such device: %v", d))
	}
	return d.Index + 1
}

// Memory is the state of a device's account, in bytes. Cached bytes are freed blocks kept for reuse; they are not live. Taken is what the account's blocks take of
// the system: the live ones, with headers and pages that are not full, and the cached ones. It is at most one part in 64 more than the live ones alone have taken at most since the last Trim, which
// is their bytes, and less than a page for each block of 32 KiB and more.
type Memory struct{ Live, Peak, Limit, Cached, Taken int64 }

// Memory reads the account.
func (d Device) Memory() Memory {
	if d.Kind != KindCPU {
		return Memory{}
	}
	a := shim.GetAccount(d.account())
	return Memory{Live: a.Live, Peak: a.Peak, Limit: a.Limit, Cached: a.Cached, Taken: a.Taken}
}

// SetLimit limits the live bytes; 0 removes the limit. On a CUDA device it does nothing, as ResetPeak and Trim. An allocation beyond it fails with ErrOutOfMemory and changes nothing. A limit below
// what is live is accepted: it refuses everything until enough is freed. Cached blocks beyond it go back to the system.
func (d Device) SetLimit(bytes int64) {
	if d.Kind == KindCPU {
		shim.SetLimit(d.account(), bytes)
	}
}

// ResetPeak lowers the peak to what is live now.
func (d Device) ResetPeak() {
	if d.Kind == KindCPU {
		shim.ResetPeak(d.account())
	}
}

// RaisePeak raises the peak to at least so many bytes: it is how one who has reset it, to measure a part of what others measure, gives them theirs back.
func (d Device) RaisePeak(bytes int64) {
	if d.Kind == KindCPU {
		shim.RaisePeak(d.account(), bytes)
	}
}

// Trim gives cached blocks back to the system.
func (d Device) Trim() {
	if d.Kind == KindCPU {
		shim.Trim(d.account())
	}
}

// UnattributedMemory is the account of CPU allocations that no Ctx asked for, such as libtorch's own start-up.
func UnattributedMemory() Memory {
	a := shim.GetAccount(0)
	return Memory{Live: a.Live, Peak: a.Peak, Cached: a.Cached, Taken: a.Taken}
}
