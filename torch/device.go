package torch

import (
	"fmt"
	"strconv"
	"strings"
	"sync"

	"penstock.example/internal/shim"
)

// Kind is a kind of device.
type Kind int

// The kinds. The values are c10::DeviceType's.
const (
	KindCPU  Kind = 0
	KindCUDA Kind = 1
)

// String returns "cpu" or "cuda", or another kind that libtorch has put a tensor on.
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

// Device is a place for tensors, with an account of its memory: live bytes, their peak, and an
// optional limit. The zero value is cpu:0.
//
// Several CPU devices are several accounts on one machine. So a pipeline over cores or sockets is
// real: a tensor made on cpu:1 is charged to cpu:1 wherever and whenever it is freed. An account
// counts exactly the bytes that were asked for: parameters, gradients, optimizer state, activations
// and operators' workspaces alike.
//
// Accounts belong to the process. All methods are safe for concurrent use. The account of a CUDA
// device counts what a Ctx on the device has asked libtorch's allocator for, which reserves more:
// see Memory.
type Device struct {
	Kind  Kind
	Index int
}

// MaxCPU is the number of CPU devices a process can have.
const MaxCPU = shim.CPUAccounts - 1

// CPU returns the i-th CPU device, 0 <= i < MaxCPU, and CUDA the i-th CUDA device.
func CPU(i int) Device  { return Device{KindCPU, i} }
func CUDA(i int) Device { return Device{KindCUDA, i} }

// ParseDevice reads "cpu", "cpu:1" or "cuda:0".
func ParseDevice(s string) (Device, error) {
	name, index, has := strings.Cut(s, ":")
	d := Device{}
	if name == "cuda" {
		d.Kind = KindCUDA
	} else if name != "cpu" {
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

// String returns the device in the form that ParseDevice reads, such as "cpu:1".
func (d Device) String() string { return fmt.Sprintf("%s:%d", d.Kind, d.Index) }

// Usable returns an error that says why this process cannot use the device, or nil.
func (d Device) Usable() error {
	n := shim.Devices(int(d.Kind))
	if d.Kind == KindCPU {
		n = MaxCPU
	}
	why := ""
	switch {
	case d.Index >= 0 && d.Index < n:
		return nil
	case d.Kind == KindCUDA && shim.CUDAVersion() == 0:
		why = "this build has no CUDA; build with a libtorch that has it, and make finds it"
	case n == 0:
		why = "there is no GPU, or no driver for it"
	default:
		why = fmt.Sprintf("the last one is %v", Device{d.Kind, n - 1})
	}
	return fmt.Errorf("libtorch %s here cannot use %v: %s", Version(), d, why)
}

// Hardware describes a device. CPU devices have the zero value: all of them are one machine.
type Hardware struct {
	Model string // the name of a GPU, as its driver has it
	// Free is the highest limit that a GPU can keep: its free bytes and the process's cached
	// bytes, less 512 MiB for what is on no account: kernels, which are loaded
	// when they are first used, the workspaces of workers (see Ctx.PrepareProducts), and gaps between
	// blocks.
	Free int64
}

// Hardware describes the device. It fails for a GPU that cannot be used.
func (d Device) Hardware() (Hardware, error) {
	if err := d.Usable(); err != nil || d.Kind == KindCPU {
		return Hardware{}, err
	}
	unused, err := shim.UnusedOfGPU(d.Index)
	if err != nil {
		return Hardware{}, fmt.Errorf("torch: reading what %v has free: %s", d, err.Message)
	}
	name, _ := shim.GPUModel(d.Index) // "" where there is none
	return Hardware{Model: name, Free: max(unused+d.Memory().Cached-besideAccounts, 1)}, nil
}

// besideAccounts is what a GPU keeps free of limits: see Hardware.Free.
const besideAccounts = 512 << 20

// Version is libtorch's version.
func Version() string { return shim.Version() }

// CUDADevices is the number of CUDA devices that this process can use.
func CUDADevices() int { return shim.Devices(int(KindCUDA)) }

// Account is the index that package shim knows the device's account by. Account 0 is for allocations
// that no Ctx asked for.
func (d Device) Account() int {
	switch {
	case d.Kind == KindCPU && d.Index >= 0 && d.Index < MaxCPU:
		return d.Index + 1
	case d.Kind == KindCUDA && d.Index >= 0 && d.Index < shim.GPUAccounts:
		return shim.GPUAccount + d.Index
	case d.Kind != KindCPU && d.Kind != KindCUDA:
		return 0
	}
	panic(fmt.Sprintf("torch: no such device: %v", d))
}

// Memory is the state of a device's account, in bytes.
//
// On a CPU: cached bytes are freed blocks kept for reuse; they are not live. Taken is the memory of the
// system under all blocks of the account: the live ones, with headers and partly used pages, and
// the cached ones. It exceeds the most that live blocks alone have taken since the last Trim by at
// most one part in 64. Live blocks take their bytes, and less than a page more for each block of 32
// KiB and above.
//
// On a CUDA device taken is what libtorch's allocator has reserved, for all of the process, and
// cached what of it is in no block in use.
type Memory struct{ Live, Peak, Limit, Cached, Taken int64 }

// Memory reads the account.
func (d Device) Memory() Memory {
	a := shim.GetAccount(d.Account())
	return Memory{a.Live, a.Peak, a.Limit, a.Cached, a.Taken}
}

// SetLimit limits the live bytes; 0 removes the limit. An allocation beyond it fails with
// ErrOutOfMemory and changes nothing. A limit below what is live is accepted: all allocations are
// then refused until enough is freed. Cached blocks beyond the limit go back to the system.
//
// On a CUDA device the limit is one of the bytes that are asked for. What libtorch's allocator
// reserves for them (Memory.Taken) is more and has no bound but the GPU, unless
// PYTORCH_CUDA_ALLOC_CONF sets one (per_process_memory_fraction, from libtorch 2.9 on). An allocation
// that the GPU has no room for, because of fragmentation, or because others use it too, fails with
// ErrOutOfMemory as well.
func (d Device) SetLimit(bytes int64) { shim.SetLimit(d.Account(), bytes) }

// ResetPeak lowers the peak to the live bytes.
func (d Device) ResetPeak() { shim.ResetPeak(d.Account()) }

// Trim gives cached blocks back to the system.
func (d Device) Trim() { shim.Trim(d.Account()) }

// SetDeterministic sets whether CUDA devices compute the same bits each time, which costs speed, and
// has operators fail that cannot. It is on unless it is switched off: bits are promised. It is of the
// process, and comes before the first product. CPUs always do.
func SetDeterministic(on bool) { setNumerics(func() { numerics.varying = !on }) }

// Deterministic reports whether CUDA devices are told to compute the same bits each time.
func Deterministic() bool { setNumerics(nil); return !numerics.varying }

// SetTF32 sets whether CUDA devices may multiply and convolve float32 in TF32, several times as fast,
// where factors have 10 bits of mantissa instead of 23. It is off unless it is switched on. PyTorch
// has it on for convolutions. It is of the process, and comes before the first product. Where the
// bits of several processes are to be the same, all have the same setting.
func SetTF32(on bool) { setNumerics(func() { numerics.tf32 = on }) }

// TF32 reports whether CUDA devices may compute in TF32.
func TF32() bool { setNumerics(nil); return numerics.tf32 }

// numerics is how the CUDA devices of the process compute. The first Ctx of a CUDA device tells
// libtorch, unless a setter has before.
var (
	numerics struct{ told, varying, tf32 bool }
	telling  sync.Mutex
)

// setNumerics changes numerics and tells libtorch, which without a change is told once.
func setNumerics(change func()) {
	telling.Lock()
	defer telling.Unlock()
	if change != nil {
		change()
	} else if numerics.told {
		return
	}
	shim.SetGPUNumerics(!numerics.varying, numerics.tf32)
	numerics.told = true
}
