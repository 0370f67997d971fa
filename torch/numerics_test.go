package torch_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"penstock.example/internal/shim"
	"penstock.example/torch"
)

// Bits and float32 are promised of a CUDA device from its first context on, whatever computes there, unless
// something else was asked for before.
func TestHowGPUsCompute(t *testing.T) {
	const tf32 = shim.TF32Convolutions | shim.TF32Products
	for _, tt := range []struct {
		name   string
		choose func()
		want   int
	}{
		{"by default", func() {}, shim.Deterministic},
		{"in TF32", func() { torch.SetTF32(true) }, shim.Deterministic | tf32},
		{"not in TF32", func() { torch.SetTF32(false) }, shim.Deterministic},
		{"other bits each time", func() { torch.SetDeterministic(false) }, 0},
		{"both", func() { torch.SetDeterministic(false); torch.SetTF32(true) }, tf32},
		{"the same bits after all", func() { torch.SetDeterministic(false); torch.SetTF32(true); torch.SetDeterministic(true) }, shim.Deterministic | tf32},
	} {
		torch.ForgetNumerics()
		tt.choose()
		for range 2 {
			torch.NewCtx(torch.Options{Device: torch.CUDA(0)}).Close()
		}
		if got := shim.GPUNumerics(); got != tt.want || torch.Deterministic() != (tt.want&shim.Deterministic != 0) || torch.TF32() != (tt.want&tf32 != 0) {
			t.Errorf("%s: libtorch has %b, want %b; Deterministic %v, TF32 %v", tt.name, got, tt.want, torch.Deterministic(), torch.TF32())
		}
	}
	torch.ForgetNumerics()
	torch.NewCtx(torch.Options{}).Close()
	if got := shim.GPUNumerics(); got&shim.Deterministic != 0 {
		t.Errorf("a context on a CPU has GPUs compute by %b", got)
	}
}

// What libtorch reads of the environment once is set before it does, in a build with CUDA, and what the user has
// set stays.
func TestWhatLibtorchReadsOfTheEnvironment(t *testing.T) {
	const workspaces, config, other, child = "CUBLAS_WORKSPACE_CONFIG", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PENSTOCK_TEST_ENVIRONMENT"
	read := func() string {
		return fmt.Sprint(shim.Environment(workspaces), " ", shim.Environment(config), " ", shim.Environment(other))
	}
	if os.Getenv(child) != "" {
		fmt.Println(child, read())
		os.Exit(0)
	}
	want := map[string]string{"": "  ", workspaces + "=:16:8": ":16:8  ", config + "=backend:native": " backend:native ", other + "=backend:native": "  backend:native"}
	if cuda, _ := torch.CUDABuild(); cuda != "" {
		want = map[string]string{
			"":                         ":4096:8 expandable_segments:True ",
			workspaces + "=:16:8":      ":16:8 expandable_segments:True ",
			config + "=backend:native": ":4096:8 backend:native ",
			other + "=backend:native":  ":4096:8  backend:native",
		}
	}
	for variable, want := range want {
		again := exec.Command(os.Args[0], "-test.run=^TestWhatLibtorchReadsOfTheEnvironment$")
		for _, v := range os.Environ() {
			if name, _, _ := strings.Cut(v, "="); name != workspaces && name != config && name != other {
				again.Env = append(again.Env, v)
			}
		}
		again.Env = append(again.Env, child+"=1", variable)
		if variable == "" {
			again.Env = again.Env[:len(again.Env)-1]
		}
		out, err := again.Output()
		if err != nil || string(out) != child+" "+want+"\n" {
			t.Errorf("with %q: got %q, %v; want %q", variable, out, err, want)
		}
	}
}

// The libraries that decide a GPU's bits have names in a build with CUDA.
func TestCUDALibraries(t *testing.T) {
	cuda, _ := torch.CUDABuild()
	if text := torch.CUDALibraries(); (text != "") != (cuda != "") || text != "" && !strings.HasPrefix(text, "cuBLAS ") {
		t.Errorf("CUDA %q, libraries %q", cuda, text)
	}
}
