package command

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const pretrained = "../examples/guide/testdata/finetune/"

// A new head is trained on a body that stays as it was loaded, in two stages under a limit; the run
// stops and goes on with the bits of one that did not, is evaluated and exported.
func TestFineTuning(t *testing.T) {
	pictures := folderOf(t)
	tune := func(out string, more ...string) []string {
		return with([]string{"train", "--model", "vit_b_16", "--set", "width=16,depth=1,heads=2", "--data",
			"images", "--data-dir", pictures, "--data-set", "size=32,crop=4,flip=1",
			"--init", pretrained + "vit.safetensors", "--init-skip", "heads.*", "--train-only", "heads.*",
			"--balance", "9,11", "--memory-limit", "256KiB", "--checkpoint", "optimal", "--batch", "6",
			"--chunks", "3", "--lr", "0.1", "--out", out}, more...)
	}
	whole, parts := t.TempDir(), t.TempDir()
	must(t, tune(whole, "--epochs", "4")...)
	must(t, tune(parts, "--steps", "5", "--epochs", "4")...)
	must(t, tune(parts, "--epochs", "4", "--resume")...)
	var e struct {
		Accuracy float64 `json:"accuracy"`
	}
	if err := json.Unmarshal([]byte(must(t, "eval", whole, "--format", "json").stdout), &e); err != nil ||
		e.Accuracy != 1 {
		t.Errorf("accuracy %v, %v", e.Accuracy, err)
	}
	file, other := filepath.Join(t.TempDir(), "tuned.safetensors"),
		filepath.Join(t.TempDir(), "parts.safetensors")
	must(t, "export", whole, "--out", file)
	must(t, "export", parts, "--out", other)
	before, after, resumed := opened(t, pretrained+"vit.safetensors"), opened(t, file), opened(t, other)
	if len(after) != len(before) {
		t.Errorf("%d tensors, want %d", len(after), len(before))
	}
	for name, was := range before {
		switch head := strings.HasPrefix(name, "heads."); {
		case !bytes.Equal(after[name].Data, resumed[name].Data):
			t.Errorf("%s: a run that went on has other bits", name)
		case head && after[name].Shape[0] != 2:
			t.Errorf("%s has the shape %v", name, after[name].Shape)
		case !head && !bytes.Equal(after[name].Data, was.Data):
			t.Errorf("%s has changed", name)
		}
	}
	refuses(t, tune(whole, "--epochs", "9", "--resume", "--train-only", "conv_proj"), exitUsage,
		"train_only", "resume with the saved flags and data")
	for pattern, want := range map[string]string{
		"fc.*":  `--train-only: no layer with parameters is named "fc.*"; there are "conv_proj"`,
		"token": `--train-only: no layer with parameters is named "token"`,
	} {
		out := filepath.Join(t.TempDir(), "out")
		refuses(t, tune(out, "--train-only", pattern), exitUsage, want)
		if _, err := os.Stat(out); err == nil {
			t.Error("--out was written")
		}
	}
}
