package torch

import (
	"fmt"

	"penstock/internal/shim"
)

// init chooses OpenBLAS's AVX-512 kernels where it failed to: Debian's 0.3.21 takes AVX2 kernels on newer AMD cores, 119 against 228 GFLOP/s. It
// does nothing when the user set OPENBLAS_CORETYPE, and must come before the first BLAS call of the process.
func init() {
	if shim.PrefersSkylakeX() {
		_ = shim.UseBLASCore("SkylakeX") // a BLAS that cannot change stays as it is
	}
}

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

// BLASCore names the BLAS kernels in use, "" when the BLAS does not tell.
func BLASCore() string { return shim.BLASCore() }

// Version is libtorch's version.
func Version() string { return shim.Version() }
