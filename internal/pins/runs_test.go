// Package pins_test records results that must not change when only the code's structure changes:
// the final weights of training runs, the plans of random and of measured chains, and the bytes of
// networks. scripts/pin writes the tables anew.
package pins_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"log"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"penstock.example/internal/draws"
	"penstock.example/internal/must"
	"penstock.example/internal/proctest"
	"penstock.example/torch"
)

// kernels fixes the choices that libraries make by the processor: OpenBLAS's kernels and block
// sizes, libtorch's vector width, oneDNN's instruction set. So weights have the same bits on every
// x86-64 processor with AVX2.
var kernels = []string{
	"OPENBLAS_CORETYPE=Haswell", "OPENBLAS_L2_SIZE=512", "ATEN_CPU_CAPABILITY=avx2",
	"ONEDNN_MAX_CPU_ISA=AVX2", "DNNL_MAX_CPU_ISA=AVX2",
}

// asFingerprint in the environment makes this test binary print the fingerprint of its kernels.
const asFingerprint = "PENSTOCK_PINS_FINGERPRINT"

// folder has the command's test binary.
var folder string

func TestMain(m *testing.M) {
	if os.Getenv(asFingerprint) != "" {
		fmt.Print(fingerprint())
		return
	}
	var err error
	if folder, err = os.MkdirTemp("", "pins"); err != nil {
		log.Fatal(err)
	}
	code := m.Run()
	_ = os.RemoveAll(folder)
	os.Exit(code)
}

// fingerprint hashes the results of libtorch's operators on fixed numbers, with no Penstock code
// above package torch. If it differs, kernels differ, and so do the bits of weights.
func fingerprint() string {
	c := torch.NewCtx(torch.Options{Threads: 1})
	defer c.Close()
	wave := func(shape ...int64) *torch.Tensor {
		n := int64(1)
		for _, s := range shape {
			n *= s
		}
		data := make([]float32, n)
		for i := range data {
			data[i] = float32(math.Sin(float64(i)))
		}
		return torch.From(c, data, shape...)
	}
	h := sha256.New()
	hash := func(t *torch.Tensor) { h.Write(torch.Bytes(t)) }
	for _, size := range []int64{7, 16, 28} {
		x := wave(8, 16, size, size)
		hash(c.Op("penstock::conv2d", x, wave(32, 16, 3, 3), nil, []int64{1, 1}, []int64{1, 1}, []int64{1,
			1}, 1))
		hash(c.Op("aten::batch_norm", x, wave(16), wave(16), nil, nil, true, 0.1, 1e-5, true))
		hash(c.PlainLinear(wave(37, size*size), wave(129, size*size), wave(129)))
		hash(c.Op("aten::softmax.int", c.GELU(x, "none"), -1))
	}
	return fmt.Sprintf("%x", h.Sum(nil))[:16]
}

const table, laterTable = "testdata/runs.txt", "testdata/runs-2.6.txt"

// slow are the groups that take seconds a line. A quick run leaves them out.
var slow = []string{"resnet20-autocast", "resnet50", "resnet1001"}

// TestRuns trains by the command and compares the SHA-256 of the weights with the table, and within
// a group.
//
// A line of testdata/runs.txt has a group, the SHA-256, and command lines joined by " then "; the
// weights of the last one count. All lines of a group must end with the same weights. TEXT stands
// for a text file, OUT for a folder of the line's own. The first line is the fingerprint of the
// table's kernels. If it differs, only lines of a group are compared, and so are runs with
// --autocast: bfloat16 kernels cannot be fixed, as oneDNN has none for AVX2.
//
// testdata/runs-2.6.txt has a fingerprint, and then the groups with other weights and their SHA-256
// for libtorch 2.
func TestRuns(t *testing.T) {
	if testing.Short() {
		t.Skip("trains")
	}
	lines := read(t, table)
	otherwise := map[string]string{}
	if isTorch2() {
		for _, line := range read(t, laterTable)[1:] {
			group, sum, _ := strings.Cut(line, " ")
			otherwise[group] = sum
		}
	}
	dir := t.TempDir()
	usual, fixed := proctest.NewRunner(t, build(t)), proctest.NewRunner(t, build(t), kernels...)
	text := filepath.Join(dir, "text.txt")
	must.Do(t, os.WriteFile(text, []byte(strings.Repeat("The water drives the turbine; a penstock leads "+
		"it there. ", 400)), 0o644))
	mark, known := fixedKernels(t)
	if !known && !*must.Update {
		t.Log("only weights within groups are compared")
	}
	groups := map[string]string{}
	written := []string{"kernels " + mark}
	laterOut := slices.Clone(written)
	for i, line := range lines[1:] {
		fields := strings.SplitN(line, " ", 3)
		group, want, flags := fields[0], fields[1], fields[2]
		if slices.Contains(slow, group) && !draws.Full && !*must.Update {
			continue
		}
		name := fmt.Sprintf("%s/%d", group, i+2)
		t.Run(name, func(t *testing.T) {
			var got string
			runner := fixed
			if autocast(flags) {
				runner = usual
			}
			out := filepath.Join(dir, fmt.Sprint("out", i))
			for _, part := range strings.Split(flags, " then ") {
				part = strings.NewReplacer("TEXT", text, "OUT", out).Replace(part)
				got = weights(t, runner, strings.Fields(part))
			}
			written = append(written, fmt.Sprintf("%s %s %s", group, got, flags))
			other, ok := groups[group]
			if ok && other != got {
				t.Errorf("%s\nends with weights %s, another run of its group with %s", flags, got, other)
			}
			groups[group] = got
			if !ok && got != want && !autocast(flags) {
				laterOut = append(laterOut, group+" "+got)
			}
			if sum, ok := otherwise[group]; ok {
				want = sum
			}
			if known && !*must.Update && !autocast(flags) && got != want {
				t.Errorf("%s\nends with weights %s, want %s", flags, got, want)
			}
		})
	}
	if isTorch2() {
		write(t, laterTable, laterOut)
	} else {
		write(t, table, written)
	}
}

func isTorch2() bool { return !strings.HasPrefix(torch.Version(), "1.") }

// fixedFingerprint is the fingerprint under the variables in kernels.
var fixedFingerprint = sync.OnceValues(func() ([]byte, error) {
	self := exec.Command(os.Args[0])
	self.Env = append(os.Environ(), append(kernels, asFingerprint+"=1")...)
	return self.Output()
})

// fixedKernels returns fixedFingerprint, and whether it is the table's.
func fixedKernels(t *testing.T) (found string, known bool) {
	t.Helper()
	found, path := string(must.Get(fixedFingerprint())(t)), table
	if isTorch2() {
		path = laterTable
	}
	_, recorded, _ := strings.Cut(read(t, path)[0], " ")
	if recorded != found {
		t.Logf("kernels %s differ from the table's, %s", found, recorded)
	}
	return found, recorded == found
}

// build makes the command's test binary, which runs several command lines in one process, and
// returns its path. It stats every source file, so that "go test" knows that a cached result
// depends on it.
func build(t *testing.T) (binary string) {
	t.Helper()
	binary = filepath.Join(folder, "penstock.test")
	if _, err := os.Stat(binary); err == nil {
		return binary
	}
	must.Do(t, filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && slices.Contains([]string{".go", ".cpp", ".h", ".hpp"}, filepath.Ext(path)) {
			_, err = os.Stat(path)
		}
		return err
	}))
	if out, err := exec.Command("go", "test", "-c", "-o", binary,
		"penstock.example/command").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return binary
}

func autocast(flags string) bool { return strings.Contains(flags, "--autocast") }

// weights runs "penstock train" and returns the SHA-256 of its final weights.
func weights(t *testing.T, runner *proctest.Runner, flags []string) string {
	t.Helper()
	r := runner.Run(t, append([]string{"train", "--format", "json"}, flags...)...)
	if r.Code != 0 {
		t.Fatalf("penstock train %s: exit code %d\n%s", strings.Join(flags, " "), r.Code, r.Stderr)
	}
	lines := strings.Split(strings.TrimSpace(r.Stdout), "\n")
	var done struct {
		SHA256 string `json:"params_sha256"`
	}
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &done); err != nil || done.SHA256 == "" {
		t.Fatalf("penstock train %s: no weights in %s (%v)", strings.Join(flags, " "), lines[len(lines)-1],
			err)
	}
	return done.SHA256
}

// read returns the lines of a table without comments and empty lines.
func read(t *testing.T, table string) (lines []string) {
	t.Helper()
	for line := range strings.Lines(string(must.Get(os.ReadFile(table))(t))) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			lines = append(lines, line)
		}
	}
	return lines
}

// write replaces the lines of a table below its comments, with -update.
func write(t *testing.T, table string, lines []string) {
	t.Helper()
	if !*must.Update || t.Failed() {
		return
	}
	var head strings.Builder
	for line := range strings.Lines(string(must.Get(os.ReadFile(table))(t))) {
		if line[0] != '#' {
			break
		}
		head.WriteString(line)
	}
	must.Do(t, os.WriteFile(table, []byte(head.String()+strings.Join(lines, "\n")+"\n"), 0o644))
}
