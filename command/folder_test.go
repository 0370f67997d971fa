package command

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/torch"
)

// writeFolder writes a small model in Hugging Face's layout, with weights by a seed and the tokenizer of the
// fixtures. of is the name of a folder of package models.
func writeFolder(t *testing.T, of string) string {
	t.Helper()
	folder := filepath.Join(t.TempDir(), of)
	var config map[string]any
	read := func(path string) []byte {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	if err := json.Unmarshal(read(filepath.Join("../models/testdata/folders", of, configFile)), &config); err != nil {
		t.Fatal(err)
	}
	if of != "vit" {
		config["vocab_size"], config["eos_token_id"] = 380, 0
	}
	content, _ := json.Marshal(config)
	if err := os.Mkdir(folder, 0o777); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{configFile: content,
		"tokenizer.json": read(fixtureTokenizer + "/tokenizer.json")} {
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	m, err := models.New(folder, models.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer nn.Free(m)
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	nn.Materialise(c, nn.State(m), 9)
	if err := nn.Save(filepath.Join(folder, "model.safetensors"), m); err != nil {
		t.Fatal(err)
	}
	return folder
}

// tune trains adapters of a folder's model on a text.
func tune(t *testing.T, folder, layers string, args ...string) []string {
	t.Helper()
	text := filepath.Join(t.TempDir(), "text.txt")
	if err := os.WriteFile(text, []byte(strings.Repeat("The stages of the pipeline are busy. ", 60)), 0o666); err != nil {
		t.Fatal(err)
	}
	return with([]string{"train", "--model", folder, "--lora", "r=3,alpha=6,dropout=0.1,layers=" + layers, "--data",
		"text", "--data-dir", text, "--window", "16", "--batch", "4", "--chunks", "2", "--optimizer", "adamw", "--lr",
		"0.01"}, args...)
}

// TestFolderIsAModel: a run starts from a folder's weights and trains adapters alone, on any cut. It goes on
// and is evaluated, prompted and exported when the folder is gone. What it exports is a model again.
func TestFolderIsAModel(t *testing.T) {
	for of, layers := range map[string]string{"llama": "*.q_proj *.v_proj", "gpt2": "*.attn.c_attn"} {
		t.Run(of, func(t *testing.T) {
			folder := writeFolder(t, of)
			whole, parts := filepath.Join(t.TempDir(), "whole"), filepath.Join(t.TempDir(), "parts")
			wantSum := sha(t, tune(t, folder, layers, "--steps", "4", "--out", whole, "--format", "json")...)
			first := must(t, tune(t, folder, layers, "--steps", "2", "--epochs", "9", "--out", parts, "--stages", "2")...)
			says(t, first.stderr, "--model "+folder+": loaded ", "skipped: ", "lora_A.weight")
			before := opened(t, filepath.Join(folder, "model.safetensors"))
			if err := os.RemoveAll(folder); err != nil {
				t.Fatal(err)
			}
			if sum := sha(t, "train", "--resume", "--out", parts, "--steps", "4", "--format", "json"); sum != wantSum {
				t.Error("two stages and a resumed run give other weights")
			}
			want := evaluated(t, "eval", parts, "--stages", "3")
			says(t, must(t, "predict", parts, "--prompt", "The stages", "--tokens", "9").stdout, "\n")

			merged, adapter := filepath.Join(t.TempDir(), "merged"), filepath.Join(t.TempDir(), "adapter")
			must(t, "export", parts, "--out", merged)
			must(t, "export", parts, "--adapter", "--out", adapter)
			after := opened(t, filepath.Join(merged, "model.safetensors"))
			if !slices.Equal(slices.Sorted(maps.Keys(after)), slices.Sorted(maps.Keys(before))) {
				t.Error("other tensors are exported")
			}
			for name, was := range before {
				adapted := strings.HasSuffix(name, ".weight") && slices.ContainsFunc(strings.Fields(layers),
					func(pattern string) bool { return nn.Match(pattern, strings.TrimSuffix(name, ".weight")) })
				if bytes.Equal(was.Data, after[name].Data) == adapted {
					t.Errorf("%s: changed is %v", name, !adapted)
				}
			}
			again := evaluated(t, "eval", merged, "--data", "text", "--data-dir", textFile(t, "text.txt",
				strings.Repeat("The stages of the pipeline are busy. ", 60)), "--window", "16", "--batch", "4")
			if d := *again.Loss - *want.Loss; d > 1e-5 || d < -1e-5 {
				t.Errorf("the exported model has the loss %v, want %v", *again.Loss, *want.Loss)
			}
			r := must(t, tune(t, merged, layers, "--steps", "1", "--adapter", adapter)...)
			says(t, r.stderr, "--adapter "+adapter+": loaded ")
		})
	}
}

