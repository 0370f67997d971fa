// Package pins_test holds what a change of structure must not change: the weights that training
// runs end with, the plans of random and of measured chains, and the bytes that networks take.
// scripts/pin writes the tables anew.
package pins_test

import (
	"crypto/sha256"
	"encoding/json"
	"flag"
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

var update = flag.Bool("update", false, "write the tables of testdata anew")

// kernels fixes what libraries would choose by the processor, so that weights have the same bits on
// every x86-64 processor with AVX2: OpenBLAS's kernels and block sizes, libtorch's vector width,
// oneDNN's instruction set.
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

// fingerprint hashes operators of libtorch's own on fixed numbers, with nothing of Penstock above
// package torch: where it differs, other kernels are at work, and the bits of weights differ too.
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

// slow are groups of networks that take seconds a line. A quick run leaves them out.
var slow = []string{"resnet20-autocast", "resnet50", "resnet1001"}

// TestRuns trains by the command and compares the SHA-256 of the weights with the table's, and
// within a group.
//
// A line of testdata/runs.txt is a group, the SHA-256, and one or more command lines joined by "
// then ", of which the last one's weights count. Lines of one group end with the same weights: they
// differ in nothing that counts. TEXT stands for a text file, OUT for a folder of the line's own.
// The first line is the fingerprint of the kernels that the table was made with; where it differs,
// only groups are compared. So are runs with --autocast: kernels in bfloat16 cannot be fixed, as
// oneDNN has none for AVX2.
//
// testdata/runs-2.6.txt has, below a fingerprint, the groups that end with other weights with
// libtorch 2.6, and their SHA-256. With a libtorch of version 2 these count.
func TestRuns(t *testing.T) {
	if testing.Short() {
		t.Skip("trains")
	}
	lines := read(t, table)
	otherwise := map[string]string{}
	if isLater() {
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
	if !known && !*update {
		t.Log("only weights within groups are compared")
	}
	groups := map[string]string{}
	written := []string{"kernels " + mark}
	laterOut := slices.Clone(written)
	for i, line := range lines[1:] {
		fields := strings.SplitN(line, " ", 3)
		group, want, flags := fields[0], fields[1], fields[2]
		if slices.Contains(slow, group) && !draws.Full && !*update {
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
			if known && !*update && !autocast(flags) && got != want {
				t.Errorf("%s\nends with weights %s, want %s", flags, got, want)
			}
		})
	}
	if isLater() {
		write(t, laterTable, laterOut)
	} else {
		write(t, table, written)
	}
}

// isLater reports whether libtorch's version is 2 or later.
func isLater() bool { return !strings.HasPrefix(torch.Version(), "1.") }

// fixedFingerprint is the fingerprint with the variables in kernels.
var fixedFingerprint = sync.OnceValues(func() ([]byte, error) {
	self := exec.Command(os.Args[0])
	self.Env = append(os.Environ(), append(kernels, asFingerprint+"=1")...)
	return self.Output()
})

// fixedKernels returns the fingerprint of the kernels that the variables in kernels choose here, and
// whether it is the fingerprint of the tables.
func fixedKernels(t *testing.T) (mark string, known bool) {
	t.Helper()
	found := must.Get(fixedFingerprint())(t)
	of := table
	if isLater() {
		of = laterTable
	}
	_, made, _ := strings.Cut(read(t, of)[0], " ")
	if made != string(found) {
		t.Logf("kernels %s differ from those of the table, %s", found, made)
	}
	return string(found), made == string(found)
}

// build makes the command's test binary, which runs several command lines in one process, and
// returns its path. It looks at every source file, so that "go test" knows that a cached result depends
// on them.
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
		"penstock.example/cmd/penstock").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return binary
}

func autocast(flags string) bool { return strings.Contains(flags, "--autocast") }

// weights runs "penstock train" and returns the SHA-256 of the weights that it ends with.
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
	if !*update || t.Failed() {
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
