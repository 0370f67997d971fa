package command

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"penstock.example/internal/draws"
	noerr "penstock.example/internal/must"
	"penstock.example/internal/torchtest"
)

// verbLines is a command line for each verb, by its path.
func verbLines(t *testing.T) map[string][]string {
	t.Helper()
	t.Setenv(asCommand, "1") // what launch starts is this binary
	chain, plan := chainFile(t), filepath.Join(t.TempDir(), "plan.json")
	must(t, "remat", "solve", chain, "--limit", "30MiB", "--out", plan)
	program, saved := textFile(t, "program.csv", "0F0,0B0\n"), filepath.Join(t.TempDir(), "out")
	must(t, with(small, "--steps", "1", "--out", saved)...)
	return map[string][]string{
		"penstock":         {},
		"penstock help":    {"help", "train"},
		"penstock version": {"version"},
		"penstock models":  {"models"},
		"penstock balance": {"balance", "--costs", "1,2,3", "--stages", "2"},
		"penstock profile": profiled(),
		"penstock train":   with(small, "--steps", "1"),
		"penstock eval":    {"eval", saved},
		"penstock predict": {"predict", saved, numbersFile(t, "1, 28, 28", make([]float32, 784)...)},
		"penstock tokenize": {"tokenize", textFile(t, "a.txt", "the stages"), "--tokenizer",
			"../tokenizer/testdata", "--out", filepath.Join(t.TempDir(), "a.bin")},
		"penstock export": {"export", saved, "--out",
			filepath.Join(t.TempDir(), "model.safetensors")},
		"penstock checkpoint":         {"checkpoint"},
		"penstock checkpoint inspect": {"checkpoint", "inspect", saved},
		"penstock checkpoint verify":  {"checkpoint", "verify", saved},
		"penstock remat":              {"remat"},
		"penstock remat check":        {"remat", "check", chain, plan},
		"penstock remat compare":      {"remat", "compare", chain},
		"penstock remat curve": {"remat", "curve", chain, "--out",
			filepath.Join(t.TempDir(), "curve.svg")},
		"penstock remat explain":         {"remat", "explain", chain, "--limit", "30MiB"},
		"penstock remat solve":           {"remat", "solve", chain, "--limit", "30MiB"},
		"penstock plan":                  {"plan", chain, "--stages", "2", "--chunks", "2"},
		"penstock plan explain":          {"plan", "explain", chain, "--stages", "2", "--chunks", "2"},
		"penstock report":                {"report", saved, "--out", filepath.Join(t.TempDir(), "page.html")},
		"penstock launch":                with([]string{"launch", "--"}, with(small, "--steps", "1")...),
		"penstock completion":            {"completion"},
		"penstock completion bash":       {"completion", "bash"},
		"penstock schedule":              {"schedule", "1f1b", "--stages", "2", "--chunks", "2"},
		"penstock schedule check":        {"schedule", "check", program},
		"penstock schedule compare":      {"schedule", "compare", "--stages", "2", "--chunks", "2"},
		"penstock completion fish":       {"completion", "fish"},
		"penstock completion powershell": {"completion", "powershell"},
		"penstock completion zsh":        {"completion", "zsh"},
	}
}

// verbs lists the paths of all commands.
func verbs(t *testing.T) (paths []string) {
	t.Helper()
	root := newRoot(nil)
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		paths = append(paths, c.CommandPath())
		for _, child := range c.Commands() {
			walk(child)
		}
	}
	walk(root)
	return paths
}

// brokenOutputs are standard outputs that take nothing.
func brokenOutputs(t *testing.T) map[string]*os.File {
	t.Helper()
	full := noerr.Get(os.OpenFile("/dev/full", os.O_WRONLY, 0))(t)
	closed := noerr.Get(os.Open(os.DevNull))(t)
	reader, pipe, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	reader.Close()
	t.Cleanup(func() { errors.Join(full.Close(), closed.Close(), pipe.Close()) })
	return map[string]*os.File{"no space left on device": full, "bad file descriptor": closed,
		"broken pipe": pipe}
}

// Every verb, help of every verb, and --format json where there is one: if its output cannot be
// written the exit code is 1, and stderr says why.
func TestOutputIsChecked(t *testing.T) {
	lines := verbLines(t)
	var all [][]string
	for _, path := range verbs(t) {
		args, ok := lines[path]
		if !ok {
			t.Fatalf("no command line for %s", path)
		}
		all = append(all, args, append(strings.Fields(path)[1:], "--help"))
	}
	for _, path := range []string{"penstock models", "penstock balance", "penstock plan",
		"penstock profile", "penstock train", "penstock eval", "penstock checkpoint inspect",
		"penstock remat compare", "penstock remat explain", "penstock remat solve",
		"penstock schedule compare"} {
		all = append(all, with(lines[path], "--format", "json"))
	}
	outputs := brokenOutputs(t)
	torchtest.Check(t)
	for i, args := range all {
		for k, why := range slices.Sorted(maps.Keys(outputs)) {
			if k != i%len(outputs) && !draws.Full { // one for each line, in turn
				continue
			}
			stdout := outputs[why]
			var stderr bytes.Buffer
			if code := run(context.Background(), args, stdout, &stderr); code != exitFailed ||
				!strings.Contains(stderr.String(), why) {
				t.Errorf("%q, %s: exit code %d, stderr %q", args, why, code, &stderr)
			}
		}
	}
}
