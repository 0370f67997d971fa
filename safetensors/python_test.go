package safetensors_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"penstock.example/internal/must"
	"penstock.example/safetensors"
)

// found is what testdata/read.py says of a file.
type found struct {
	Reader   string
	Metadata map[string]string
	Tensors  []foundTensor
}

type foundTensor struct {
	Name   string
	DType  safetensors.DType
	Shape  []int64
	SHA256 string
}

// python reads a file in Python, with the package safetensors if a python3 has it. It skips the test
// where there is no Python.
func python(t *testing.T, path string) (f found, err error) {
	t.Helper()
	var interpreter string
	for _, name := range []string{"/usr/bin/python3", "python3"} { // Debian's packages are those of the first
		if found, err := exec.LookPath(name); err == nil &&
			(interpreter == "" || exec.Command(found, "-c", "import safetensors").Run() == nil) {
			interpreter = found
		}
	}
	if interpreter == "" {
		t.Skip("there is no python3")
	}
	out, err := exec.Command(interpreter, "testdata/read.py", path).CombinedOutput()
	if err != nil {
		return f, fmt.Errorf("%w: %s", err, out)
	}
	return f, json.Unmarshal(out, &f)
}

// What is written here is read by a reader that is not ours: tensors of all types, of no elements and
// of no dimensions, under any name.
func TestPythonReads(t *testing.T) {
	draw := rand.New(rand.NewPCG(1, 2))
	var tensors []safetensors.Tensor
	var want []foundTensor
	for i, dtype := range dtypes {
		for j, shape := range [][]int64{{}, {0}, {3}, {2, 0, 5}, {3, 1, 7}} {
			tensor := safetensors.Tensor{Name: fmt.Sprintf(`%d "größe".%d/東京`, i, j), DType: dtype, Shape: shape}
			size := must.Get(tensor.Size())(t)
			for range size {
				b := byte(draw.IntN(256))
				if dtype == safetensors.Bool {
					b &= 1
				}
				tensor.Data = append(tensor.Data, b)
			}
			tensors = append(tensors, tensor)
			want = append(want, foundTensor{tensor.Name, dtype, shape,
				fmt.Sprintf("%x", sha256.Sum256(tensor.Data))})
		}
	}
	slices.SortFunc(want, func(a, b foundTensor) int { return strings.Compare(a.Name, b.Name) })
	for _, all := range [][]safetensors.Tensor{tensors, nil} {
		path := filepath.Join(t.TempDir(), "m.safetensors")
		must.Do(t, safetensors.WriteFile(path, all, safetensors.PyTorch))
		got := must.Get(python(t, path))(t)
		t.Logf("read by %s", got.Reader)
		if d := cmp.Diff(want[:len(all)], got.Tensors); d != "" || got.Metadata["format"] != "pt" {
			t.Errorf("metadata %v, tensors:\n%s", got.Metadata, d)
		}
	}
}
