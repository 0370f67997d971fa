package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
)

// TestConfig: a file of flags is the same as a command line, which comes first; the run keeps it, and it
// goes on by it.
func TestConfig(t *testing.T) {
	torchtest.Check(t)
	dir := t.TempDir()
	out := filepath.Join(dir, "out")
	file := filepath.Join(dir, "flags.toml")
	text := `# a small run
model = "mlp"
data = "synthetic"
set = ["width=16", "depth=3"]
batch = 64
chunks = 2
balance = [2, 3, 3]
lr = 5e-2
steps = 7
format = "json"
`
	if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	typed := []string{"train", "--model", "mlp", "--data", "synthetic", "--set", "width=16,depth=3", "--batch", "64", "--chunks", "2", "--lr", "0.05", "--format", "json"}
	if got, want := sha(t, "train", "--config", file, "--steps", "2", "--out", out), sha(t, with(typed, "--steps", "2")...); got != want {
		t.Error("other weights than by the command line")
	}
	kept := filepath.Join(out, configName)
	if got, want := sha(t, "train", "--config", kept, "--steps", "3", "--resume"), sha(t, with(typed, "--steps", "3")...); got != want {
		t.Error("other weights where the run goes on by the file that it has kept")
	}
	r := spawned(t, nil, launched(3, "train", "--config", file, "--steps", "2")...)
	if r.code != exitDone {
		t.Fatalf("%+v", r)
	}
	if _, done := lines(t, r.stdout); done.ParamsSHA256 != sha(t, with(typed, "--steps", "2")...) {
		t.Error("other weights in three processes")
	}
}

// TestConfigRefuses: one line names the file and the line or the flag.
func TestConfigRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"modle = \"mlp\"\n":            "modle is no flag there; did you mean model?",
		"[train]\nmodel = \"mlp\"\n":   "train is no flag there",
		"config = \"x\"\n":             "config is no flag there",
		"rank = 1\n":                   "rank is no flag there",
		"model = \"mlp\"\nbatch = 0\n": "--batch 0: want at least 1",
		"model = \"mlp\"\nbatch =\n":   "line 2: ",
		"batch = 1\nbatch = 2\n":       "line 2: ",
		"balance = [[1], [2]]\n":       "[1]: want text, a number, true or false, or an array of them",
		"batch = 2026-01-01\n":         "want text, a number",
		"balance = [2, \"x\"]\n":       "--balance 2,x: ",
		"nesterov = \"perhaps\"\n":     "--nesterov",
	} {
		file := textFile(t, "flags.toml", text)
		r := command(t, "train", "--config", file)
		if r.code != exitUsage || r.stdout != "" || !strings.HasPrefix(r.stderr, "penstock: --config "+file+": ") || !strings.Contains(r.stderr, want) || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%q: %+v; want %q", text, r, want)
		}
	}
	if r := command(t, "train", "--config", "none.toml"); r.code != exitFailed || !strings.Contains(r.stderr, "--config none.toml: no such file") {
		t.Errorf("%+v", r)
	}
}
