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

// CUDABuild returns the versions of CUDA and NCCL of this build, such as "12.4" and "2.22.3". Both are "" in
// a build without CUDA.
func CUDABuild() (cuda, nccl string) {
	if v := shim.CUDAVersion(); v > 0 {
		cuda = fmt.Sprintf("%d.%d", v/1000, v%1000/10)
	}
	if v := shim.NCCLVersion(); v > 0 {
		nccl = fmt.Sprintf("%d.%d.%d", v/10000, v%10000/100, v%100)
	}
	return cuda, nccl
}

// CUDALibraries returns the GPU libraries that are linked, such as "cuBLAS 13.1.0, cuDNN 9.19.0". They and
// the GPU's model decide the last bits of results. It is "" in a build without CUDA.
func CUDALibraries() string { return shim.GPULibraries() }
