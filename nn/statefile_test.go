package nn_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"penstock.example/internal/disk"
	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/safetensors"
	"penstock.example/torch"
)

func savable() *nn.Sequential {
	s := nn.NewSequential().Add("in", nn.NewLinear(4, 4)).Add("norm", nn.NewBatchNorm1d(4, nn.BatchNormConfig{}))
	return s.Add("out", nn.NewLinearShared(s.Layers()[0].Layer.(*nn.Linear).Weight, true))
}

func TestSavedModelsLoad(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	path := filepath.Join(t.TempDir(), "m.safetensors")
	saved := savable()
	defer nn.Free(saved)
	nn.Materialise(c, nn.State(saved), 3)
	must.Do(t, nn.Save(path, saved))
	fresh, there := savable(), savable()
	defer nn.Free(fresh)
	defer nn.Free(there)
	nn.Materialise(c, nn.State(there), 4)
	before := there.Layers()[0].Layer.(*nn.Linear).Weight.Tensor()
	for _, m := range []*nn.Sequential{fresh, there} {
		must.Do(t, nn.Load(c, path, m))
		for i, p := range nn.State(m) {
			want := nn.State(saved)[i]
			if p.Name != want.Name || !bytes.Equal(torch.Bytes(p.Tensor()), torch.Bytes(want.Tensor())) {
				t.Errorf("%s is not what was saved", p.Name)
			}
		}
	}
	if there.Layers()[0].Layer.(*nn.Linear).Weight.Tensor() != before {
		t.Error("a parameter that existed was replaced")
	}
	file := must.Get(safetensors.Open(path))(t)
	defer file.Close()
	if n := len(file.Tensors()); n != 8 {
		t.Errorf("%d tensors in the file, want 8: the shared weight once", n)
	}
}

func TestLoadRefusesAnotherModel(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	path := filepath.Join(t.TempDir(), "m.safetensors")
	saved := savable()
	defer nn.Free(saved)
	nn.Materialise(c, nn.State(saved), 3)
	must.Do(t, nn.Save(path, saved))
	other := nn.NewSequential().Add("in", nn.NewLinear(4, 5)).Add("end", nn.NewLinear(5, 1))
	err := nn.Load(c, path, other)
	for _, want := range []string{`"in.weight" is [4 4] in the file and [5 4] in the model`, `2 not in the file: "end.weight", "end.bias"; rename`, `6 not in the model: "norm.bias"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	for _, p := range nn.State(other) {
		if p.Exists() {
			t.Errorf("%s was made", p.Name)
		}
	}
	if err := nn.Save(path, other); err == nil || !strings.Contains(err.Error(), `"in.weight" does not exist yet`) {
		t.Errorf("got %v", err)
	}
	if err := nn.Load(c, path+"x", other); err == nil || !strings.Contains(err.Error(), "nn: loading a model") {
		t.Errorf("got %v", err)
	}
}

// A named pipe or a device in place of the file is refused, not waited for or read without end.
func TestLoadTakesRegularFilesAlone(t *testing.T) {
	c := torchtest.New(t, torch.Options{})
	pipe := filepath.Join(t.TempDir(), "pipe")
	must.Do(t, syscall.Mkfifo(pipe, 0o666))
	for _, path := range []string{pipe, "/dev/zero", os.TempDir()} {
		if err := nn.Load(c, path, savable()); !errors.Is(err, disk.ErrNotRegular) {
			t.Errorf("%s: error %v", path, err)
		}
	}
}
