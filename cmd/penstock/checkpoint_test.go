package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"penstock.example/group"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/torch"
	"penstock.example/train"
)

func threeLayers() *nn.Sequential {
	return nn.NewSequential(nn.NewLinear(3, 4), nn.NewBatchNorm1d(4, nn.BatchNormConfig{}), nn.NewLinear(4, 2))
}

// savedBy saves step 12 of a small model by so many processes, each with some of the parameters, and
// returns the directory of the checkpoints.
func savedBy(t *testing.T, processes int) string {
	t.Helper()
	torchtest.Check(t)
	dir := t.TempDir()
	groups := []*group.Group{nil}
	if processes > 1 {
		groups = group.Local(processes)
	}
	errs := make([]error, processes)
	var wg sync.WaitGroup
	for rank, g := range groups {
		wg.Go(func() {
			c := torch.NewCtx(torch.Options{})
			defer c.Close()
			model := threeLayers()
			defer nn.Free(model)
			state := nn.State(model)
			for i, p := range state {
				if i*processes/len(state) == rank {
					nn.Materialise(c, []nn.NamedParam{p}, 5)
				}
			}
			o, err := optim.SGD(optim.Config{LR: 0.1, Momentum: 0.9})
			if err != nil {
				errs[rank] = err
				return
			}
			defer o.Close()
			recipe := train.Recipe{Model: train.Choice{Name: "three", Settings: map[string]any{"classes": 2}}, Seed: 1<<64 - 1}
			_, errs[rank] = train.Store{Dir: dir, Group: g}.Save(train.Progress{Step: 12}, recipe, model, o)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestCheckpointInspect: the text and the JSON say step, recipe, files and tensors.
func TestCheckpointInspect(t *testing.T) {
	dir := savedBy(t, 2)
	step := filepath.Join(dir, "step-000012")
	for _, name := range []string{dir, step} {
		text := strings.Join(strings.Fields(must(t, "checkpoint", "inspect", name).stdout), " ")
		for _, want := range []string{"checkpoint " + step, "step 12", `"classes": 2`, `"name": "three"`, `"seed": 18446744073709551615`, "model-00001-of-00002.safetensors",
			"2.weight F32 [2 4] 32 model-00002-of-00002.safetensors", "1.num_batches_tracked I64 [] 8"} {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in %s", want, text)
			}
		}
	}
	var got struct {
		Path    string
		Step    int64
		Version int
		Recipe  struct {
			Seed  uint64
			Model struct{ Name string }
		}
		Files []struct {
			Name, SHA256 string
			Optimizer    bool
			Bytes        int64
			Tensors      []struct {
				Name, DType string
				Shape       []int64
				Bytes       int64
			}
		}
	}
	if err := json.Unmarshal([]byte(must(t, "checkpoint", "inspect", dir, "--format", "json").stdout), &got); err != nil {
		t.Fatal(err)
	}
	var names, tensors []string
	for _, f := range got.Files {
		names = append(names, f.Name)
		info, err := os.Stat(filepath.Join(step, f.Name))
		if err != nil || info.Size() != f.Bytes || len(f.SHA256) != 64 || f.Optimizer != strings.HasPrefix(f.Name, "optimizer") {
			t.Errorf("%+v: %v", f, err)
		}
		for _, x := range f.Tensors {
			tensors = append(tensors, x.Name)
		}
	}
	slices.Sort(tensors)
	if got.Step != 12 || got.Path != step || got.Version != 2 || got.Recipe.Seed != 1<<64-1 || got.Recipe.Model.Name != "three" ||
		len(names) != 4 || strings.Join(tensors, " ") != "0.bias 0.weight 1.bias 1.num_batches_tracked 1.running_mean 1.running_var 1.weight 2.bias 2.weight" {
		t.Errorf("got %+v", got)
	}
}

// TestCheckpointMerge: whoever saved, the merged file has the bytes that one process writes, and both
// nn.Load and Python read it.
func TestCheckpointMerge(t *testing.T) {
	want, err := os.ReadFile(filepath.Join(savedBy(t, 1), "step-000012", "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	for _, processes := range []int{1, 2, 3} {
		dir, out := savedBy(t, processes), filepath.Join(t.TempDir(), "model.safetensors")
		if r := must(t, "checkpoint", "merge", dir, "--out", out); !strings.Contains(r.stdout, "9 tensors of step 12") {
			t.Errorf("%d processes: %q", processes, r.stdout)
		}
		if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d processes: other bytes than those of one process, %v", processes, err)
		}
		if got := must(t, "checkpoint", "merge", dir, "--out", "/dev/stdout").stdout; got != string(want) {
			t.Errorf("%d processes: other bytes on standard output", processes)
		}
		if exec.Command("python3", "--version").Run() != nil {
			continue // there is none
		}
		got, err := exec.Command("python3", "../../safetensors/testdata/read.py", out).CombinedOutput()
		if err != nil || !bytes.Contains(got, []byte(`{"name": "0.weight", "dtype": "F32", "shape": [4, 3], "sha256": "`)) || !bytes.Contains(got, []byte(`"metadata": {"format": "pt"}`)) {
			t.Errorf("%d processes: Python reads %s, %v", processes, got, err)
		}
	}
}

// TestCheckpointVerify: all that is missing or changed is told, and not merged.
func TestCheckpointVerify(t *testing.T) {
	dir := savedBy(t, 2)
	if r := must(t, "checkpoint", "verify", dir); !strings.Contains(r.stdout, "step 12, 4 files") {
		t.Errorf("%+v", r)
	}
	first, second := filepath.Join(dir, "step-000012", "model-00001-of-00002.safetensors"), filepath.Join(dir, "step-000012", "model-00002-of-00002.safetensors")
	content, err := os.ReadFile(second)
	if err != nil {
		t.Fatal(err)
	}
	content[len(content)-1] ^= 1
	if err := errors.Join(os.Remove(first), os.WriteFile(second, content, 0o666)); err != nil {
		t.Fatal(err)
	}
	r := command(t, "checkpoint", "verify", dir)
	for _, want := range []string{"is damaged", "model-00001-of-00002.safetensors is missing",
		"model-00002-of-00002.safetensors: its content does not have the hash that was written"} {
		if r.code != exitFailed || r.stdout != "" || !strings.Contains(r.stderr, want) {
			t.Errorf("%+v; want %q", r, want)
		}
	}
	out := filepath.Join(t.TempDir(), "out")
	if r := command(t, "checkpoint", "merge", dir, "--out", out); r.code != exitFailed || !strings.Contains(r.stderr, "model-00001") {
		t.Errorf("%+v", r)
	}
	if _, err := os.Stat(out); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a damaged checkpoint was merged: %v", err)
	}
}
