package main

import (
	"encoding/json"
	"image"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"penstock.example/safetensors"
)

const pretrained = "../../examples/guide/testdata/finetune/"

// tensorsOf reads a file of tensors, as shape and bytes by name.
func tensorsOf(t *testing.T, path string) map[string]string {
	t.Helper()
	file, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	out := map[string]string{}
	for _, named := range file.Tensors() {
		tensor, err := file.Read(named.Name)
		if err != nil {
			t.Fatal(err)
		}
		shape, _ := json.Marshal(tensor.Shape)
		out[tensor.Name] = string(shape) + string(tensor.Data)
	}
	return out
}

// twoKinds writes a folder of dark and bright pictures.
func twoKinds(t *testing.T) string {
	folder := t.TempDir()
	for class, name := range []string{"dark", "bright"} {
		directory := filepath.Join(folder, name)
		if err := os.MkdirAll(directory, 0o777); err != nil {
			t.Fatal(err)
		}
		for i := range 10 {
			picture := image.NewGray(image.Rect(0, 0, 40, 40))
			for at := range picture.Pix {
				picture.SetGray(at%40, at/40, color.Gray{Y: uint8(150*class + (at*7+i)%80)})
			}
			file, err := os.Create(filepath.Join(directory, strconv.Itoa(i)+".png"))
			if err != nil {
				t.Fatal(err)
			}
			if err := png.Encode(file, picture); err != nil {
				t.Fatal(err)
			}
			if err := file.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	return folder
}

// A new head is trained on a body that stays as it was loaded, in two stages under a limit; the run
// stops and goes on with the bits of one that did not, is evaluated and exported.
func TestFineTuning(t *testing.T) {
	pictures := twoKinds(t)
	tune := func(out string, more ...string) []string {
		return with([]string{"train", "--model", "vit_b_16", "--set", "width=16,depth=1,heads=2", "--data", "images", "--data-dir", pictures, "--data-set", "size=32,crop=4,flip=1",
			"--init", pretrained + "vit.safetensors", "--init-skip", "heads.*", "--train-only", "heads.*",
			"--balance", "9,11", "--memory-limit", "256KiB", "--checkpoint", "optimal", "--batch", "6", "--chunks", "3", "--lr", "0.1", "--out", out}, more...)
	}
	whole, parts := t.TempDir(), t.TempDir()
	must(t, tune(whole, "--epochs", "4")...)
	must(t, tune(parts, "--steps", "5", "--epochs", "4")...)
	must(t, tune(parts, "--epochs", "4", "--resume")...)
	var e struct {
		Accuracy float64 `json:"accuracy"`
	}
	if err := json.Unmarshal([]byte(must(t, "eval", whole, "--format", "json").stdout), &e); err != nil || e.Accuracy != 1 {
		t.Errorf("accuracy %v, %v", e.Accuracy, err)
	}
	file, other := filepath.Join(t.TempDir(), "tuned.safetensors"), filepath.Join(t.TempDir(), "parts.safetensors")
	must(t, "export", whole, "--out", file)
	must(t, "export", parts, "--out", other)
	before, after, resumed := tensorsOf(t, pretrained+"vit.safetensors"), tensorsOf(t, file), tensorsOf(t, other)
	if len(after) != len(before) {
		t.Errorf("%d tensors, want %d", len(after), len(before))
	}
	for name, was := range before {
		switch head := strings.HasPrefix(name, "heads."); {
		case after[name] != resumed[name]:
			t.Errorf("%s: a run that went on has other bits", name)
		case head && !strings.HasPrefix(after[name], map[bool]string{true: "[2,16]", false: "[2]"}[strings.HasSuffix(name, "weight")]):
			t.Errorf("%s: %.10q", name, after[name])
		case !head && after[name] != was:
			t.Errorf("%s has changed", name)
		}
	}
	refuses(t, with(slices.DeleteFunc(tune(whole, "--epochs", "9", "--resume"), func(arg string) bool { return arg == "--train-only" || arg == "heads.*" || arg == "--init-skip" })), exitUsage,
		"train_only", "resume with the --train-only of then")
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
