package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"penstock.example/group"
	noerr "penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/torch"
	"penstock.example/train"
)

func threeLayers() *nn.Sequential {
	return nn.NewSequential(nn.NewLinear(3, 4), nn.NewBatchNorm1d(4, nn.BatchNormConfig{}),
		nn.NewLinear(4, 2))
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
			recipe := train.Recipe{Model: train.Choice{Name: "three",
				Settings: map[string]any{"classes": 2}}, Seed: 1<<64 - 1}
			_, errs[rank] = train.Store{Dir: dir, Group: g}.Save(train.Progress{Step: 12}, recipe, model, o)
		})
	}
	wg.Wait()
	noerr.Do(t, errors.Join(errs...))
	return dir
}

// The text and the JSON say step, recipe, files and tensors.
func TestCheckpointInspect(t *testing.T) {
	dir := savedBy(t, 2)
	step := filepath.Join(dir, "step-000012")
	for _, name := range []string{dir, step} {
		text := strings.Join(strings.Fields(must(t, "checkpoint", "inspect", name).stdout), " ")
		says(t, text, "checkpoint "+step, "step 12", `"classes": 2`, `"name": "three"`,
			`"seed": 18446744073709551615`, "2.weight F32 [2 4] 32 model-00002-of-00002.safetensors",
			"1.num_batches_tracked I64 [] 8")
	}
	var got checkpointLine
	noerr.Do(t, json.Unmarshal([]byte(must(t, "checkpoint", "inspect", dir, "--format", "json").stdout),
		&got))
	tensors := 0
	for name, f := range got.Files {
		info, err := os.Stat(filepath.Join(step, name))
		if err != nil || info.Size() != f.Bytes || len(f.SHA256) != 64 {
			t.Errorf("%+v: %v", f, err)
		}
		tensors += len(f.Tensors)
	}
	if got.Step != 12 || got.Path != step || got.Version != 2 || len(got.Files) != 4 || tensors < 9 {
		t.Errorf("got %+v", got)
	}
}

// Whoever saved, the merged file has the bytes that one process writes, and Python reads it.
func TestCheckpointMerge(t *testing.T) {
	want := mustRead(t, filepath.Join(savedBy(t, 1), "step-000012", "model.safetensors"))
	out := filepath.Join(t.TempDir(), "model.safetensors")
	for _, processes := range []int{1, 3} {
		dir := savedBy(t, processes)
		says(t, must(t, "export", dir, "--out", out).stdout, "9 tensors of step 12")
		if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d processes: other bytes than those of one process, %v", processes, err)
		}
		if got := must(t, "export", dir, "--out", "/dev/stdout").stdout; got != string(want) {
			t.Errorf("%d processes: other bytes on standard output", processes)
		}
	}
	if exec.Command("python3", "--version").Run() != nil {
		return // there is none
	}
	got, err := exec.Command("python3", "../safetensors/testdata/read.py", out).CombinedOutput()
	if says(t, string(got), `{"name": "0.weight", "dtype": "F32", "shape": [4, 3], "sha256": "`,
		`"metadata": {"format": "pt"}`); err != nil {
		t.Error(err)
	}
}

// All that is missing or changed is told, and not merged.
func TestCheckpointVerify(t *testing.T) {
	dir := savedBy(t, 2)
	says(t, must(t, "checkpoint", "verify", dir).stdout, "step 12, 4 files")
	first := filepath.Join(dir, "step-000012", "model-00001-of-00002.safetensors")
	second := strings.Replace(first, "model-00001", "model-00002", 1)
	content := mustRead(t, second)
	content[len(content)-1] ^= 1
	noerr.Do(t, errors.Join(os.Remove(first), os.WriteFile(second, content, 0o666)))
	r := command(t, "checkpoint", "verify", dir)
	if says(t, r.stderr, "is damaged", "model-00001-of-00002.safetensors: no such file",
		"model-00002-of-00002.safetensors: its content does not match its hash"); r.code != exitFailed {
		t.Errorf("%+v", r)
	}
	out := filepath.Join(t.TempDir(), "out.safetensors")
	refuses(t, []string{"export", dir, "--out", out}, exitUsage, "model-00001")
	if _, err := os.Stat(out); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a damaged checkpoint was merged: %v", err)
	}
}
