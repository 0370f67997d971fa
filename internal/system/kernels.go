// Package system tells what this process computes with, and the memory and threads it has.
package system

import (
	"cmp"
	"fmt"
	"os"
	"strings"

	"penstock.example/internal/shim"
)

// Kernels are the variants of a library's inner loops that compute in this process. They decide the
// speed, and the last bits of results: two processes compute the same bits only with the same
// kernels.
type Kernels struct {
	Library string // "BLAS", "ATen" or "oneDNN"
	Version string // such as "MKL 2024.2" or "3.13.3"; "" if the library does not tell
	Name    string // such as "SkylakeX" or "AVX512"; "" if the library does not tell
	By      string // who chose them: an environment variable as "NAME=value", "penstock", or the library
	Best    string // the best for this processor; "" if they are in use, or not known
}

// variables are those of the environment that choose kernels.
var variables = map[string][]string{
	"OpenBLAS": {"OPENBLAS_CORETYPE"},
	"MKL":      {"MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR"},
	"ATen":     {"ATEN_CPU_CAPABILITY"},
	"oneDNN":   {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"}, // names of one, the newer first
}

var corrected bool // by init

// init corrects OpenBLAS's choice of kernels where OpenBLAS does not know the processor: 119
// instead of 228 GFLOP/s on an AVX-512 AMD core, 33 instead of 159 on a newer Intel one. It comes before
// the first BLAS call of the process.
func init() {
	if chosenBy("OpenBLAS") != "OpenBLAS" {
		return
	}
	if core := shim.BetterBLASCore(); core != "" {
		corrected = shim.UseBLASCore(core) == nil // a BLAS that cannot change stays as it is
	}
}

// KernelsInUse lists the kernels of BLAS, ATen and oneDNN, in this order.
func KernelsInUse() []Kernels {
	blas := Kernels{Library: "BLAS", Version: shim.BLASVersion(), Name: shim.BLASCore(),
		By: chosenBy("OpenBLAS"), Best: shim.BetterBLASCore()}
	switch {
	case strings.HasPrefix(blas.Version, "MKL "):
		blas.By = chosenBy("MKL")
	case corrected:
		blas.By = "penstock"
	}
	return []Kernels{blas,
		{Library: "ATen", Name: shim.ATenKernels(), By: chosenBy("ATen"), Best: shim.BetterATenKernels()},
		{Library: "oneDNN", Version: shim.OneDNNVersion(), Name: oneDNNName(shim.OneDNNISA()),
			By: chosenBy("oneDNN"), Best: oneDNNName(shim.BetterOneDNNISA())}}
}

// chosenBy returns the first of a library's variables that is set, with its value, or the library.
func chosenBy(library string) string {
	for _, v := range variables[library] {
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

// oneDNNName names a dnnl_cpu_isa_t; -1 and 0 are none, and "".
func oneDNNName(isa int) string {
	if isa <= 0 {
		return ""
	}
	return cmp.Or(oneDNNNames[isa], fmt.Sprintf("isa %#x", isa))
}

// Slow says in a sentence that the kernels are not the best for this processor, and who chose them. It is
// "" if they are the best.
func (k Kernels) Slow() string {
	if k.Best == "" {
		return ""
	}
	return fmt.Sprintf("%s computes with %s kernels, chosen by %s; the best for this processor are %s, "+
		"and a step may take several times as long", k.Library, k.Name, k.By, k.Best)
}

// KernelNames returns the names of the kernels in use, by library, without unknown ones.
func KernelNames() map[string]string {
	names := map[string]string{}
	for _, k := range KernelsInUse() {
		if k.Name != "" {
			names[k.Library] = k.Name
		}
	}
	return names
}
