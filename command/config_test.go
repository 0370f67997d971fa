package command

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

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
	mustWrite(t, file, text)
	typed := []string{"train", "--model", "mlp", "--data", "synthetic", "--set", "width=16,depth=3",
		"--batch", "64", "--chunks", "2", "--lr", "0.05", "--format", "json"}
	if got, want := sha(t, "train", "--config", file, "--steps", "2", "--out", out), sha(t,
		with(typed, "--steps", "2")...); got != want {
		t.Error("other weights than by the command line")
	}
	kept := filepath.Join(out, flagsFile)
	if got, want := sha(t, "train", "--config", kept, "--steps", "3", "--resume"), sha(t,
		with(typed, "--steps", "3")...); got != want {
		t.Error("other weights where the run goes on by the file that it has kept")
	}
	r := spawned(t, nil, launched(2, "train", "--config", file, "--steps", "2")...)
	if _, done := lines(t, r.stdout); done.ParamsSHA256 != sha(t, with(typed, "--steps", "2")...) {
		t.Error("other weights in two processes")
	}
}

// TestConfigRefuses: one line names the file and the line or the flag.
func TestConfigRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"modle = \"mlp\"\n":            "modle is no flag there; want flags of",
		"[train]\nmodel = \"mlp\"\n":   "train is no flag there",
		"config = \"x\"\n":             "config is no flag there",
		"rank = 1\n":                   "rank is no flag there",
		"model = \"mlp\"\nbatch = 0\n": "--batch 0: want a whole number from 1",
		"model = \"mlp\"\nbatch =\n":   "line 2",
		"batch = 1\nbatch = 2\n":       "line 2",
		"balance = [[1], [2]]\n":       "--balance [1],[2]: ",
		"balance = [2, \"x\"]\n":       "--balance 2,x: ",
		"nesterov = \"perhaps\"\n":     "--nesterov",

		"batch = " + strings.Repeat("[", 2<<20) + strings.Repeat("]", 2<<20): "want at most 65536",
		"batch = " + strings.Repeat("[", 30000) + strings.Repeat("]", 30000): "--batch \"[[[",
	} {
		file := textFile(t, "flags.toml", text)
		r := command(t, "train", "--config", file)
		if r.code != exitUsage || r.stdout != "" ||
			!strings.HasPrefix(r.stderr, "penstock: --config "+file+": ") ||
			!strings.Contains(r.stderr, want) || strings.Count(r.stderr, "\n") != 1 || len(r.stderr) > 2000 {
			t.Errorf("%.200q: %.200s of %d bytes; want %q", text, r.stderr, len(r.stderr), want)
		}
	}
	if r := command(t, "train", "--config", "none.toml"); r.code != exitUsage ||
		!strings.Contains(r.stderr, "--config none.toml: no such file") {
		t.Errorf("%+v", r)
	}
}

// TestConfigKeepsAll: whatever flags a verb has been given, once or several times, a file of them gives
// another command line the same, and what is written of that says the same.
func TestConfigKeepsAll(t *testing.T) {
	examples := map[string][]string{ // of flags that may be repeated; others have the value they have
		"set": {"width=16", "depth=3,classes=4"}, "data-set": {"size=8", "classes=3"},
		"group":       {"*.bias:scale=2", "a\"b\\c\a:weight-decay=0"},
		"init-rename": {"a=b", "=module", "c.d=e"}, "init-skip": {"fc.*", "x, y"},
		"train-only": {"head", `"q" "r"`},
	}
	for _, verb := range []string{"train", "plan", "profile", "balance"} {
		find := func() *cobra.Command {
			cmd, _, err := newRoot(nil).Find([]string{verb})
			if err != nil {
				t.Fatal(err)
			}
			return cmd
		}
		given, met := find(), 0
		given.Flags().VisitAll(func(f *pflag.Flag) {
			if _, ok := f.Value.(pflag.SliceValue); !ok && !strings.Contains(f.Usage, "several times") &&
				!strings.Contains(f.Usage, "repeated") {
				return
			}
			if examples[f.Name] == nil {
				t.Errorf("%s --%s may be repeated: it wants a row of examples", verb, f.Name)
			}
			for _, text := range examples[f.Name] {
				if err := given.Flags().Set(f.Name, text); err != nil {
					t.Error(err)
				}
			}
			met++
		})
		if met == 0 {
			t.Errorf("%s has no flag that may be repeated", verb)
		}
		text := effectiveConfig(given)
		read := find()
		if err := readConfig(read, textFile(t, "flags.toml", string(text)), nil); err != nil {
			t.Errorf("%s: %v\n%s", verb, err, text)
		}
		given.Flags().VisitAll(func(f *pflag.Flag) {
			list, ok := f.Value.(pflag.SliceValue)
			if !f.Changed || !ok {
				return
			}
			if got := read.Flags().Lookup(f.Name).Value.(pflag.SliceValue).GetSlice(); !slices.Equal(got,
				examples[f.Name]) || !slices.Equal(list.GetSlice(), got) {
				t.Errorf("%s --%s: %q, want %q\n%s", verb, f.Name, got, examples[f.Name], text)
			}
		})
		sorted := func(text []byte) []string { return slices.Sorted(strings.Lines(string(text))) }
		if again := effectiveConfig(read); !slices.Equal(sorted(again), sorted(text)) {
			t.Errorf("%s:\n%s\nthen\n%s", verb, text, again)
		}
	}
}
