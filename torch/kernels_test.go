package torch_test

import (
	"slices"
	"strings"
	"testing"

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
