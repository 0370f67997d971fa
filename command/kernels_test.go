package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"penstock.example/internal/proctest"
	"penstock.example/internal/system"
)

// slowest are OpenBLAS's kernels of 2004: every OpenBLAS for x86 has them, and they are the best of no
// processor with AVX2.
const slowest = "Prescott"

// Kernels that a variable of the environment chose were slow, and changed the last bits, without a
// word.
func TestSlowKernelsAreTold(t *testing.T) {
	slow := proctest.NewRunner(t, os.Args[0], "OPENBLAS_CORETYPE="+slowest)
	version := slow.Run(t, "version").Stdout
	if !strings.Contains(version, slowest+" kernels") {
		t.Skip("the BLAS has no such kernels")
	}
	blas := system.KernelsInUse()[0]
	if blas.Name == slowest || blas.Best != "" {
		t.Skipf("the BLAS has %s kernels here anyway, of which %q are the best", blas.Name, blas.Best)
	}
	told := "chosen by OPENBLAS_CORETYPE=Prescott; the best for this processor are "
	if !strings.Contains(version, told) {
		t.Errorf("version does not say %q:\n%s", told, version)
	}
	out := filepath.Join(t.TempDir(), "out")
	args := with(small, "--out", out, "--steps")
	first, _, _ := strings.Cut(slow.Run(t, with(args, "2")...).Stderr, "\n")
	if !strings.Contains(first, told) {
		t.Errorf("the first line of train does not say %q: %s", told, first)
	}
	was := "; kernels of BLAS " + blas.Name + " instead of Prescott"
	for _, tt := range []struct {
		steps string
		slow  bool
		want  int // times that other kernels are told of
	}{{"3", true, 0}, {"4", false, 1}, {"5", false, 0}} {
		args := with(args, tt.steps, "--resume")
		var stderr string
		if tt.slow {
			stderr = slow.Run(t, args...).Stderr
		} else {
			stderr = must(t, args...).stderr
		}
		if got := strings.Count(stderr, was); got != tt.want {
			t.Errorf("slow %v, to step %s: %d times %q, want %d:\n%s", tt.slow, tt.steps, got, was, tt.want,
				stderr)
		}
		if got := strings.Contains(stderr, told); got != tt.slow {
			t.Errorf("slow %v, to step %s: slow kernels told of: %v", tt.slow, tt.steps, got)
		}
	}
}
