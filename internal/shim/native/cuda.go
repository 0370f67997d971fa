//go:build cuda

package native

// The tag cuda is set by make, bundle/build and scripts/cuda where the libtorch that is linked has
// CUDA. The linker would drop libraries that nothing names: libtorch_cuda registers itself.

/*
#cgo CXXFLAGS: -DPENSTOCK_CUDA -isystem /usr/local/cuda/include
#cgo LDFLAGS: -L/usr/local/cuda/lib64 -Wl,--no-as-needed -ltorch_cuda -lc10_cuda -Wl,--as-needed -lcudart -lnccl
*/
import "C"
