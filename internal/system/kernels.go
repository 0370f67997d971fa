// Package system reports the kernels, memory and threads of this process.
package system

import (
	"cmp"
	"fmt"
	"os"
	"strings"

	"penstock.example/internal/shim"
)

// Kernels is the variant of a library's inner loops that this process uses. It decides the speed, and the
// last bits of results: two processes compute the same bits only with the same kernels.
type Kernels struct {
	Library string // "BLAS", "ATen" or "oneDNN"
	Version string // such as "MKL 2024.2" or "3.13.3"; "" if unknown
	Name    string // such as "SkylakeX" or "AVX512"; "" if unknown
	By      string // what chose them: an environment variable as "NAME=value", "penstock", or the library
	Best    string // the best kernels for this processor; "" if they are in use, or unknown
}

const coreType = "OPENBLAS_CORETYPE"

var corrected bool // by init

// init corrects OpenBLAS's choice of kernels if OpenBLAS does not know the processor. Its own choice computes
// at 119 instead of 228 GFLOP/s on an AVX-512 AMD core, and at 33 instead of 159 on a newer Intel core. init
// precedes the first BLAS call of the process.
func init() {
	if core := shim.BetterBLASCore(); core != "" && os.Getenv(coreType) == "" {
		corrected = shim.UseBLASCore(core) == nil // some versions of BLAS cannot change
	}
}

// KernelsInUse lists the kernels of BLAS, ATen and oneDNN, in this order.
func KernelsInUse() []Kernels {
	blas := Kernels{Library: "BLAS", Version: shim.BLASVersion(), Name: shim.BLASCore(),
		By: chosenBy("OpenBLAS", coreType), Best: shim.BetterBLASCore()}
	switch {
	case strings.HasPrefix(blas.Version, "MKL "):
		blas.By = chosenBy("MKL", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR")
	case corrected:
		blas.By = "penstock"
	}
	return []Kernels{blas,
		{Library: "ATen", Name: shim.ATenKernels(), By: chosenBy("ATen", "ATEN_CPU_CAPABILITY"),
			Best: shim.BetterATenKernels()},
		{Library: "oneDNN", Version: shim.OneDNNVersion(), Name: oneDNNName(shim.OneDNNISA()),
			By:   chosenBy("oneDNN", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"),
			Best: oneDNNName(shim.BetterOneDNNISA())}}
}

// chosenBy returns the first variable that is set, with its value, or the library.
func chosenBy(library string, variables ...string) string {
	for _, v := range variables {
		if value := os.Getenv(v); value != "" {
			return v + "=" + value
		}
	}
	return library
}

// oneDNNNames are the names that ONEDNN_MAX_CPU_ISA takes, by dnnl_cpu_isa_t.
var oneDNNNames = map[int]string{
	0x1: "SSE41", 0x3: "AVX", 0x7: "AVX2", 0x27: "AVX512_CORE", 0x67: "AVX512_CORE_VNNI",
	0xe7: "AVX512_CORE_BF16", 0x3e7: "AVX512_CORE_AMX", // of oneDNN 2
	0x1ef: "AVX512_CORE_FP16", 0xfef: "AVX512_CORE_AMX", 0x1fef: "AVX512_CORE_AMX_FP16", // of oneDNN 3
}

// oneDNNName names a dnnl_cpu_isa_t. Without one (-1 or 0) it returns "".
func oneDNNName(isa int) string {
	if isa <= 0 {
		return ""
	}
	return cmp.Or(oneDNNNames[isa], fmt.Sprintf("isa %#x", isa))
}

// String describes the kernels, without the library.
func (k Kernels) String() string {
	text := k.Version
	if k.Name != "" {
		text = strings.TrimSpace(text + " " + k.Name + " kernels, chosen by " + k.By)
	}
	if k.Best != "" {
		text += "; the best for this processor are " + k.Best
	}
	return text
}

// Slow returns a warning that the kernels are not the best for this processor, or "".
func (k Kernels) Slow() string {
	if k.Best == "" {
		return ""
	}
	return fmt.Sprintf("%s computes with %s kernels, chosen by %s; the best for this processor are %s, "+
		"and a step may take several times as long", k.Library, k.Name, k.By, k.Best)
}

// KernelNames returns the known names of the kernels in use, by library.
func KernelNames() map[string]string {
	names := map[string]string{}
	for _, k := range KernelsInUse() {
		if k.Name != "" {
			names[k.Library] = k.Name
		}
	}
	return names
}
