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

// The values are c10::DeviceType's.
const (
	KindCPU  Kind = 0
	KindCUDA Kind = 1
)

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
// CPU devices are accounts on one machine, for pipelines over cores or sockets. A tensor made on
// cpu:1 is charged to cpu:1 until anybody frees it. An account counts exactly the bytes that were
// requested: parameters, gradients, optimizer state, activations and operators' workspaces.
//
// Accounts belong to the process. All methods are safe for concurrent use. The account of a CUDA
// device counts the requests of contexts on the device; libtorch's allocator reserves more, see
// Memory.
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

// Usable returns nil, or an error that says why this process cannot use the device.
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
		why = "this build has no CUDA; install a libtorch that has CUDA and run make again"
	case n == 0:
		why = "there is no GPU, or no driver for it"
	default:
		why = fmt.Sprintf("the last one is %v", Device{d.Kind, n - 1})
	}
	return fmt.Errorf("libtorch %s here cannot use %v: %s", Version(), d, why)
}

// Hardware describes a device. CPU devices have the zero value: all of them are one machine.
type Hardware struct {
	Model string // the driver's name of a GPU
	// Free is the highest limit that a GPU can keep: its free bytes and the process's cached bytes,
	// less 512 MiB for memory that no account counts. Such are kernels (loaded when first used),
	// workspaces of products, and gaps between blocks.
	Free int64
}

// Hardware describes the device. It fails for a GPU that cannot be used.
func (d Device) Hardware() (Hardware, error) {
	if err := d.Usable(); err != nil || d.Kind == KindCPU {
		return Hardware{}, err
	}
	unused, err := shim.UnusedOfGPU(d.Index)
	if err != nil {
		return Hardware{}, fmt.Errorf("torch: reading the free memory of %v: %s", d, err.Message)
	}
	name, _ := shim.GPUModel(d.Index)
	const besideAccounts = 512 << 20
	return Hardware{Model: name, Free: max(unused+d.Memory().Cached-besideAccounts, 1)}, nil
}

func Version() string { return shim.Version() }

// CUDADevices is the number of CUDA devices that this process can use.
func CUDADevices() int { return shim.Devices(int(KindCUDA)) }

// Account is package shim's index of the device's account. Account 0 is for allocations outside of
// contexts.
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
// On a CPU, Cached are the bytes of freed blocks that are kept for reuse. They are not live. Taken
// is the system's memory under all live and cached blocks of the account, with headers and partly
// used pages. It is at most 1/64 above the greatest memory under live blocks since the last Trim.
// The memory under a live block of 32 KiB or more is less than a page larger than the block.
//
// On a CUDA device, Taken are the bytes that libtorch's allocator has reserved for the whole
// process. Cached are the reserved bytes that no block uses.
type Memory struct{ Live, Peak, Limit, Cached, Taken int64 }

func (d Device) Memory() Memory {
	a := shim.GetAccount(d.Account())
	return Memory{a.Live, a.Peak, a.Limit, a.Cached, a.Taken}
}

// SetLimit limits the live bytes; 0 removes the limit. An allocation beyond it fails with
// ErrOutOfMemory and changes nothing. The limit may be below the live bytes: all allocations are
// then refused until enough is freed. Cached blocks beyond the limit go back to the system.
//
// On a CUDA device the limit is on requested bytes. libtorch's allocator reserves more
// (Memory.Taken), up to the size of the GPU, unless PYTORCH_CUDA_ALLOC_CONF limits it
// (per_process_memory_fraction, from libtorch 2.9 on). An allocation that fails on the GPU, because
// of fragmentation or other processes, fails with ErrOutOfMemory as well.
func (d Device) SetLimit(bytes int64) { shim.SetLimit(d.Account(), bytes) }

// ResetPeak lowers the peak to the live bytes.
func (d Device) ResetPeak() { shim.ResetPeak(d.Account()) }

// Trim gives cached blocks back to the system.
func (d Device) Trim() { shim.Trim(d.Account()) }

// SetDeterministic sets whether CUDA devices compute the same bits each time, as CPUs always do. It
// is on by default. It costs speed, and operators that have no such algorithm fail. Call it before
// the first product of the process.
func SetDeterministic(on bool) { setNumerics(func() { numerics.varying = !on }) }

// SetTF32 sets whether CUDA devices may multiply and convolve float32 in TF32, which is several
// times as fast and has 10 bits of mantissa instead of 23. It is off by default; PyTorch has it on
// for convolutions. Call it before the first product of the process. Processes that are to compute
// the same bits need the same setting.
func SetTF32(on bool) { setNumerics(func() { numerics.tf32 = on }) }

// numerics has the settings of the process's CUDA devices. A setter, or the first Ctx of a CUDA
// device, passes them to libtorch.
var numerics struct {
	sync.Mutex
	passed, varying, tf32 bool // varying is not deterministic
}

// setNumerics changes numerics and passes them to libtorch. If change is nil, it passes them only
// once.
func setNumerics(change func()) {
	numerics.Lock()
	defer numerics.Unlock()
	if change != nil {
		change()
	} else if numerics.passed {
		return
	}
	shim.SetGPUNumerics(!numerics.varying, numerics.tf32)
	numerics.passed = true
}
