package torch_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"penstock.example/internal/shim"
	"penstock.example/internal/torchtest"
	"penstock.example/torch"
)

func TestKernelsInUse(t *testing.T) {
	var libraries []string
	names := torch.KernelNames()
	for _, k := range torch.KernelsInUse() {
		libraries = append(libraries, k.Library)
		if k.By == "" || (k.Slow() == "") != (k.Best == "") || names[k.Library] != k.Name {
			t.Errorf("%+v, slow: %q, by name: %q", k, k.Slow(), names[k.Library])
		}
	}
	if want := []string{"BLAS", "ATen", "oneDNN"}; !slices.Equal(libraries, want) {
		t.Errorf("kernels of %v, want %v", libraries, want)
	}
	if !strings.HasPrefix(names["BLAS"], torch.BLASCore()) {
		t.Errorf("the BLAS has %s kernels, and %s", torch.BLASCore(), names["BLAS"])
	}
}

func TestSlowKernels(t *testing.T) {
	for _, tt := range []struct {
		kernels torch.Kernels
		want    []string // in the sentence; none is no sentence
	}{
		{torch.Kernels{Library: "BLAS", Name: "SkylakeX", By: "penstock"}, nil},
		{torch.Kernels{Library: "BLAS", Name: "Haswell", By: "OPENBLAS_CORETYPE=Haswell", Best: "SkylakeX"},
			[]string{"BLAS computes with Haswell kernels", "OPENBLAS_CORETYPE=Haswell", "SkylakeX", "Unset OPENBLAS_CORETYPE to"}},
		{torch.Kernels{Library: "BLAS", Name: "Prescott", By: "OpenBLAS", Best: "SkylakeX"}, []string{"Prescott kernels, which OpenBLAS chose", "SkylakeX"}},
	} {
		got := tt.kernels.Slow()
		if tt.want == nil && got != "" {
			t.Errorf("%+v: %s", tt.kernels, got)
		}
		for _, want := range tt.want {
			if !strings.Contains(got, want) {
				t.Errorf("%+v: no %q in %s", tt.kernels, want, got)
			}
		}
	}
}

// Where OpenBLAS takes kernels that are not the best, as for processors made after its release, others can be
// taken, with which products are right.
func TestOtherBLASKernelsAreTaken(t *testing.T) {
	was := shim.BLASCore()
	features, _ := os.ReadFile("/proc/cpuinfo")
	if !strings.HasPrefix(shim.BLASVersion(), "OpenBLAS ") || !strings.Contains(string(features), " avx2 ") {
		t.Skip("no OpenBLAS, or a processor without AVX2")
	}
	defer shim.UseBLASCore(was)
	if err := shim.UseBLASCore("Nehalem"); err != nil || shim.BLASCore() != "Nehalem" {
		t.Fatalf("asked for Nehalem: %s kernels, %v", shim.BLASCore(), err)
	}
	better := shim.BetterBLASCore()
	if err := shim.UseBLASCore(better); better == "" || err != nil || shim.BLASCore() != better || shim.BetterBLASCore() != "" {
		t.Errorf("asked for %s: %s kernels, better are %q, %v", better, shim.BLASCore(), shim.BetterBLASCore(), err)
	}
	c := torchtest.New(t, torch.Options{Device: torch.CPU(1), Threads: 1})
	x := c.Ones(torch.Float32, 96, 80)
	for i, y := range torch.Values[float32](c.Mm(x, c.Transpose(x, 0, 1))) {
		if y != 80 {
			t.Fatalf("element %d of a product of ones over 80 is %v", i, y)
		}
	}
}
