package shim_test

import (
	"testing"

	"penstock.example/internal/shim"
)

// Whatever kernels OpenBLAS has chosen, those that this processor should use are found and taken.
func TestBLASKernelsAreCorrected(t *testing.T) {
	was := shim.BLASCore()
	if err := shim.UseBLASCore("Nehalem"); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		if err := shim.UseBLASCore(was); err != nil || shim.BLASCore() != was {
			t.Errorf("kernels %s, %v; want %s again", shim.BLASCore(), err, was)
		}
	})
	if shim.BLASCore() != "Nehalem" {
		t.Skip("this BLAS has no Nehalem kernels")
	}
	better := shim.BetterBLASCore()
	if better == "" {
		t.Skip("this processor has no better kernels than Nehalem's")
	}
	if err := shim.UseBLASCore(better); err != nil || shim.BLASCore() != better || shim.BetterBLASCore() != "" {
		t.Errorf("kernels %s, %v; want %s, and none that are better than these, not %q", shim.BLASCore(), err, better, shim.BetterBLASCore())
	}
}
