package system

import (
	"fmt"
	"syscall"
	"time"
	"unsafe"

	"penstock.example/internal/shim"
	_ "penstock.example/internal/shim/timers" // less work for the runtime's monitor
)

// MaxThreads limits the intra-op threads of a context. A process with very many threads stops working.
const MaxThreads = 256

// PinThread binds the calling OS thread to cores. The caller has locked its goroutine to the thread.
func PinThread(cores []int) error {
	var list []int32
	for _, c := range cores {
		list = append(list, int32(c))
	}
	if err := shim.PinThread(list); err != nil {
		return fmt.Errorf("cores %v: %s", cores, err.Message)
	}
	return nil
}

// TagThread marks the calling OS thread with a number other than 0. The caller has locked its goroutine to
// the thread. Go code that a backward runs (Checkpoint, Attach) sees the tag of Backward's thread.
func TagThread(tag int64) { shim.TagThread(tag) }

// ThreadTag returns the tag of the calling OS thread; 0 is none.
func ThreadTag() int64 { return shim.ThreadTag() }

// Library returns the path of the libtorch that this process has loaded, or "".
func Library() string { return shim.Library() }

// ThreadTime returns the processor time that the calling thread has used.
// Only differences between calls on one thread are meaningful: the goroutine must be locked to it.
func ThreadTime() time.Duration {
	const clock = 3 // CLOCK_THREAD_CPUTIME_ID
	var t syscall.Timespec
	_, _, failure := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clock, uintptr(unsafe.Pointer(&t)), 0)
	if failure != 0 {
		panic("reading the thread's clock: " + failure.Error()) // Linux has had it since 2.6
	}
	return time.Duration(t.Nano())
}

// CUDABuild describes the CUDA of this build, such as "12.4 with NCCL 2.22.3, cuBLAS 13.1.0, cuDNN 9.19.0".
// The libraries and the GPU's model decide the last bits of results. It is "" in a build without CUDA.
func CUDABuild() string {
	cuda, nccl := shim.CUDAVersion(), shim.NCCLVersion()
	if cuda == 0 {
		return ""
	}
	return fmt.Sprintf("%d.%d with NCCL %d.%d.%d, %s", cuda/1000, cuda%1000/10, nccl/10000, nccl%10000/100,
		nccl%100, shim.GPULibraries())
}
