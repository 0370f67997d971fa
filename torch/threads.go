package torch

import (
	"fmt"

	"penstock/internal/shim"
)

// MaxThreads is the most intra-op threads that a context may have. A process with very many more is not slow, it stops.
const MaxThreads = 256

// PinThread binds the calling OS thread to cores; the caller has locked its goroutine to the thread.
func PinThread(cores []int) error {
	list := make([]int32, len(cores))
	for i, c := range cores {
		list[i] = int32(c)
	}
	if err := shim.PinThread(list); err != nil {
		return fmt.Errorf("torch: cores %v: %s", cores, err.Message)
	}
	return nil
}

// TagThread marks the calling OS thread with a number; the caller has locked its goroutine to the thread. Whatever a backward runs again in Go (Checkpoint, Attach) finds the tag of
// the thread that called Backward, whichever thread it runs on.
func TagThread(tag int64) { shim.TagThread(tag) }

// ThreadTag is the number that the calling OS thread is marked with; 0 is none.
func ThreadTag() int64 { return shim.ThreadTag() }

// Version is libtorch's version.
func Version() string { return shim.Version() }

// FMAPeak measures one core's rate of fused multiply-adds, in float32 operations per second: the bound that a GEMM is compared with. 0 is unknown.
func FMAPeak() float64 { return shim.FMAPeak() }
