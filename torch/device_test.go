package torch_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"penstock.example/internal/engine"
	"penstock.example/internal/must"
	"penstock.example/internal/shim"
	"penstock.example/internal/system"
	"penstock.example/internal/torchtest"
	"penstock.example/torch"
)

// churn allocates and frees tensors of all sizes at random, at most so many live bytes at once, and
// calls see after each. A tensor that is freed has what was written into it. What it leaves live is
// scattered over all that was allocated.
func churn(t *testing.T, d torch.Device, most int64, rounds int, see func()) {
	t.Helper()
	c, look := torch.NewCtx(torch.Options{Device: d, Threads: 1}), torch.NewCtx(torch.Options{Threads: 1})
	t.Cleanup(func() { c.Close(); d.Trim() })
	random := rand.New(rand.NewPCG(1, 2))
	type filled struct {
		*torch.Tensor
		with uint8
	}
	var live []filled
	free := func(i int) {
		x := live[i]
		n := x.Numel()
		for _, at := range []int64{0, random.Int64N(n), n - 1} {
			if got := torch.Values[uint8](look.Narrow(x.Tensor, 0, at, 1))[0]; got != x.with {
				t.Fatalf("byte %d of %d is %d, and %d was written", at, n, got, x.with)
			}
		}
		look.Release(0)
		x.Free()
		live[i] = live[len(live)-1]
		live = live[:len(live)-1]
	}
	for i := range rounds {
		size := int64(1) << (12 + random.IntN(12)) // 4 KiB to 8 MiB
		size += random.Int64N(size)
		for d.Memory().Live+size > most {
			free(random.IntN(len(live)))
		}
		with := uint8(i)
		live = append(live, filled{c.Fill_(c.Empty(torch.Uint8, size), float64(with)), with})
		see()
	}
	for d.Memory().Live > most/4 { // a tensor is no larger
		free(random.IntN(len(live)))
	}
	see()
}

// The blocks of an account take little more of the system than the account's own peak, whatever is
// freed and reused; and after Trim little more than what is live.
func TestTakenFollowsTheAccount(t *testing.T) {
	torchtest.Check(t)
	const most, page = 64 << 20, 4096
	d := torch.CPU(7)
	d.Trim()
	d.ResetPeak()
	reused := false
	churn(t, d, most, 4000, func() {
		m := d.Memory()
		// blocks of less than 32 KiB are not rounded to pages
		if bound := (m.Peak + m.Peak/(32<<10)*page) / 64 * 65; m.Taken > bound {
			t.Fatalf("%+v: more than %d is taken", m, bound)
		}
		if m.Taken < m.Live+m.Cached {
			t.Fatalf("%+v: less is taken than is live and cached", m)
		}
		reused = reused || m.Cached > 0
	})
	if !reused {
		t.Error("nothing was cached")
	}
	d.Trim()
	if m := d.Memory(); m.Cached != 0 || m.Live == 0 || m.Taken > m.Live+m.Live/8+1<<20 {
		t.Errorf("after Trim: %+v", m)
	}
}

func TestALowerLimitReturnsCachedBlocks(t *testing.T) {
	torchtest.Check(t)
	d := torch.CPU(7)
	d.Trim()
	c := torch.NewCtx(torch.Options{Device: d})
	defer d.Trim()
	defer c.Close()
	c.Zeros(torch.Uint8, 1<<20)
	mark := c.Mark()
	for range 8 {
		c.Zeros(torch.Uint8, 3<<20)
	}
	c.Release(mark)
	defer d.SetLimit(0)
	for _, limit := range []int64{16 << 20, 4 << 20, 1 << 20} {
		d.SetLimit(limit)
		if m := d.Memory(); m.Taken > max(limit, 1<<20+1<<16) {
			t.Errorf("with a limit of %d: %+v", limit, m)
		}
	}
}

// Who restricts a device first need not go last. When each put back the limit that it had found,
// two pipes or modules that were closed in the order in which they were made left the first one's
// limit for good, and the second had none from the first Close on.
func TestRestrict(t *testing.T) {
	torchtest.Check(t)
	d := torch.CPU(3)
	limit := func(reason string, want int64) {
		t.Helper()
		if got := d.Memory().Limit; got != want {
			t.Errorf("%s: the limit is %d, want %d", reason, got, want)
		}
	}
	first := engine.Restrict(d, 1000)
	limit("one", 1000)
	second := engine.Restrict(d, 500)
	limit("a lower one", 500)
	third := engine.Restrict(d, 2000)
	limit("a higher one", 500)
	first()
	limit("the first has gone", 500)
	second()
	limit("the lowest has gone", 2000)
	second()
	limit("again", 2000)
	third()
	limit("none is left", 0)

	d.SetLimit(700)
	defer d.SetLimit(0)
	release := engine.Restrict(d, 900)
	limit("above the device's own", 700)
	lower := engine.Restrict(d, 600)
	release()
	limit("below it", 600)
	lower()
	limit("the device's own", 700)
	gpu := torch.CUDA(0)
	release = engine.Restrict(gpu, 5)
	if got := gpu.Memory().Limit; got != 5 {
		t.Errorf("the limit of %v is %d, want 5", gpu, got)
	}
	release()
	if got := gpu.Memory(); got.Limit != 0 || got.Live != 0 {
		t.Errorf("%v has %+v, want no limit and nothing live", gpu, got)
	}
}

func TestAvailableMemoryIsTheLeastOfMachineAndCgroups(t *testing.T) {
	const machine = "MemTotal:  2000 kB\nMemAvailable:    1000 kB\n" // 1024000 bytes
	for _, test := range []struct {
		name  string
		files map[string]string
		want  int64
	}{
		{"no cgroups", nil, 1024000},
		{"version 2, the process's own", map[string]string{
			"proc/self/cgroup":             "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max": "700000\n", "sys/fs/cgroup/a/b/memory.current": "300000\n",
			"sys/fs/cgroup/a/b/memory.stat": "active_file 7\ninactive_file 20000\nslab 9\n",
			"sys/fs/cgroup/a/memory.max":    "max\n", "sys/fs/cgroup/a/memory.current": "900000\n",
		}, 420000},
		{"version 2, the one above", map[string]string{
			"proc/self/cgroup":             "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max": "700000\n", "sys/fs/cgroup/a/b/memory.current": "300000\n",
			"sys/fs/cgroup/a/memory.max": "900000\n", "sys/fs/cgroup/a/memory.current": "600000\n",
		}, 300000},
		{"version 2, a container's, which is its root", map[string]string{
			"proc/self/cgroup":         "0::/\n",
			"sys/fs/cgroup/memory.max": "500000\n", "sys/fs/cgroup/memory.current": "100000\n",
		}, 400000},
		{"version 2, above what the machine has", map[string]string{
			"proc/self/cgroup":         "0::/\n",
			"sys/fs/cgroup/memory.max": "5000000\n", "sys/fs/cgroup/memory.current": "100000\n",
		}, 1024000},
		{"version 2, more taken than the limit", map[string]string{
			"proc/self/cgroup":         "0::/\n",
			"sys/fs/cgroup/memory.max": "500000\n", "sys/fs/cgroup/memory.current": "500001\n",
		}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := t.TempDir()
			write := func(name, text string) {
				at := filepath.Join(root, name)
				must.Do(t, os.MkdirAll(filepath.Dir(at), 0o777))
				must.Do(t, os.WriteFile(at, []byte(text), 0o666))
			}
			write("proc/meminfo", machine)
			for name, text := range test.files {
				write(name, text)
			}
			if got, err := system.AvailableMemory(root); err != nil || got != test.want {
				t.Errorf("%d bytes (%v), want %d", got, err, test.want)
			}
		})
	}
}

func TestKernelsInUse(t *testing.T) {
	var libraries []string
	names := system.KernelNames()
	for _, k := range system.KernelsInUse() {
		libraries = append(libraries, k.Library)
		if k.By == "" || (k.Slow() == "") != (k.Best == "") || names[k.Library] != k.Name {
			t.Errorf("%+v, slow: %q, by name: %q", k, k.Slow(), names[k.Library])
		}
	}
	if want := []string{"BLAS", "ATen", "oneDNN"}; !slices.Equal(libraries, want) {
		t.Errorf("kernels of %v, want %v", libraries, want)
	}
}

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
		{"the same bits after all", func() {
			torch.SetDeterministic(false)
			torch.SetTF32(true)
			torch.SetDeterministic(true)
		}, shim.Deterministic | tf32},
	} {
		torch.ForgetNumerics()
		tt.choose()
		for range 2 {
			torch.NewCtx(torch.Options{Device: torch.CUDA(0)}).Close()
		}
		if got := shim.GPUNumerics(); got != tt.want {
			t.Errorf("%s: libtorch has %b, want %b", tt.name, got, tt.want)
		}
	}
	torch.ForgetNumerics()
	torch.NewCtx(torch.Options{}).Close()
	if got := shim.GPUNumerics(); got&shim.Deterministic != 0 {
		t.Errorf("a context on a CPU has GPUs compute by %b", got)
	}
}

// What libtorch reads of the environment once is set before it does, in a build with CUDA, and what the
// user has
// set stays.
func TestWhatLibtorchReadsOfTheEnvironment(t *testing.T) {
	const workspaces, config, other, child = "CUBLAS_WORKSPACE_CONFIG", "PYTORCH_CUDA_ALLOC_CONF",
		"PYTORCH_ALLOC_CONF", "PENSTOCK_TEST_ENVIRONMENT"
	read := func() string {
		return fmt.Sprint(shim.Environment(workspaces), " ", shim.Environment(config), " ",
			shim.Environment(other))
	}
	if os.Getenv(child) != "" {
		fmt.Println(child, read())
		os.Exit(0)
	}
	want := map[string]string{"": "  ", workspaces + "=:16:8": ":16:8  ", config +
		"=backend:native": " backend:native ", other + "=backend:native": "  backend:native"}
	if system.CUDABuild() != "" {
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

// The pieces of a tensor are its bytes, none is larger than a MiB, and all are whole elements.
func TestPieces(t *testing.T) {
	torchtest.Check(t)
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	const notContiguous = "not contiguous"
	large := c.Randn(7, 100_003)
	for name, x := range map[string]*torch.Tensor{
		"large": large, notContiguous: c.Transpose(large, 0, 1),
		"with a gradient": c.Share(large).SetRequiresGrad(true), "no elements": c.Zeros(torch.Float32,
			0, 3), "a number": c.Zeros(torch.Float64),
		"bytes": c.Ones(torch.Uint8, 3<<20+1), "one piece": c.Ones(torch.Float32, 1<<18),
	} {
		var all []byte
		most := 0
		err := torch.Pieces(x, func(piece []byte) error {
			all, most = append(all, piece...), max(most, len(piece))
			return nil
		})
		if err != nil || !bytes.Equal(all, torch.Bytes(x)) || name != notContiguous && most > 1<<20 {
			t.Errorf("%s: %v; %d bytes, in pieces of up to %d", name, err, len(all), most)
		}
	}
	full, calls := errors.New("full"), 0
	if err := torch.Pieces(large, func([]byte) error { calls++; return full }); err != full || calls != 1 {
		t.Errorf("%d calls, %v", calls, err)
	}
}
