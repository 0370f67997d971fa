package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	fixtureTokenizer = "../../tokenizer/testdata"
	fixtureTokens    = 377
)

// onText trains a small GPT-2 for a step on the tokens of a text.
func onText(t *testing.T, args ...string) []string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "text.txt")
	if err := os.WriteFile(path, []byte(strings.Repeat("The stages of the pipeline are busy. ", 40)), 0o666); err != nil {
		t.Fatal(err)
	}
	return with([]string{"train", "--model", "gpt2", "--set", "depth=1,width=8,heads=2", "--data", "text", "--data-dir", path,
		"--data-set", "tokenizer=" + fixtureTokenizer, "--window", "8", "--batch", "4", "--chunks", "2", "--steps", "1"}, args...)
}

// The model has a class for each token, or more, and room for the window, or more, so that weights
// that have more of them fit.
func TestTrainsOnTokens(t *testing.T) {
	usual, large := t.TempDir(), t.TempDir()
	must(t, onText(t, "--out", usual)...)
	must(t, onText(t, "--out", large, "--set", "classes=400,context=12")...)
	for dir, want := range map[string][]string{usual: {"[377 8]", "[8 8]"}, large: {"[400 8]", "[12 8]"}} {
		r := must(t, "checkpoint", "inspect", dir)
		for _, shape := range want {
			if !strings.Contains(strings.ReplaceAll(r.stdout, " x ", " "), strings.Trim(shape, "[]")) {
				t.Errorf("%s lacks a tensor %s:\n%s", dir, shape, r.stdout)
			}
		}
	}
	must(t, onText(t, "--out", large, "--set", "classes=400,context=12", "--steps", "2", "--resume")...)
}

// A tokenizer of another model is refused before anything is written, with both numbers.
func TestRefusesTokenizers(t *testing.T) {
	weights := filepath.Join(t.TempDir(), "weights.safetensors")
	out := t.TempDir()
	must(t, onText(t, "--out", out, "--set", "classes=400,context=12")...)
	must(t, "checkpoint", "merge", out, "--out", weights)
	damaged := filepath.Join(t.TempDir(), "tokenizer.json")
	if err := os.WriteFile(damaged, []byte("{\n\"model\": ["), 0o666); err != nil {
		t.Fatal(err)
	}
	for what, row := range map[string]struct {
		args  []string
		code  int
		parts []string
	}{
		"more tokens than the model": {[]string{"--set", "classes=300"}, exitUsage,
			[]string{"--set classes=300: --data text has 377 tokens; want at least 377, or --data-set tokenizer=PATH with the tokenizer of a model of 300"}},
		"a window that is too long": {[]string{"--set", "context=4"}, exitUsage, []string{"--set context=4: --window 8; want at least 8, or a shorter window"}},
		"weights of another vocabulary": {[]string{"--init", weights}, exitUsage,
			[]string{"wte.weight", "[400 8]", "[377 8]", "--set classes=N,context=N makes the model as large as the weights", "the tokenizer of the weights"}},
		"damaged": {[]string{"--data-set", "tokenizer=" + damaged}, exitUsage, []string{damaged + ": line 2: "}},
		"missing": {[]string{"--data-set", "tokenizer=none"}, exitUsage, []string{"none: no such file", "want a tokenizer.json"}},
		"no path": {[]string{"--data-set", "tokenizer="}, exitUsage, []string{"--data-set tokenizer=: want the path of a tokenizer.json"}},
	} {
		t.Run(what, func(t *testing.T) {
			unwritten := filepath.Join(t.TempDir(), "out")
			refuses(t, onText(t, with(row.args, "--out", unwritten)...), row.code, row.parts...)
			if _, err := os.Stat(unwritten); err == nil {
				t.Error("--out was written")
			}
		})
	}
	must(t, onText(t, "--init", weights, "--set", "classes=400,context=12")...)
}
