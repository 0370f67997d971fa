package command

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	noerr "penstock.example/internal/must"
)

const (
	fixtureTokenizer = "../tokenizer/testdata"
	fixtureTokens    = 377
)

// onText trains a small GPT-2 for a step on the tokens of a text.
func onText(t *testing.T, args ...string) []string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "text.txt")
	noerr.Do(t, os.WriteFile(path, []byte(strings.Repeat("The stages of the pipeline are busy. ", 40)),
		0o666))
	return with([]string{"train", "--model", "gpt2", "--set", "depth=1,width=8,heads=2", "--data", "text",
		"--data-dir", path,
		"--data-set", "tokenizer=" + fixtureTokenizer, "--window", "8", "--batch", "4", "--chunks", "2",
		"--steps", "1"}, args...)
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
	must(t, "export", out, "--out", weights)
	damaged := filepath.Join(t.TempDir(), "tokenizer.json")
	noerr.Do(t, os.WriteFile(damaged, []byte("{\n\"model\": ["), 0o666))
	for what, row := range map[string]struct {
		args  []string
		code  int
		parts []string
	}{
		"more tokens than the model": {[]string{"--set", "classes=300"}, exitUsage,
			[]string{"--set classes=300: --data text has 377; want at least as many"}},
		"a window that is too long": {[]string{"--set", "context=4"}, exitUsage,
			[]string{"--set context=4: --data text has 8; want at least as many"}},
		"weights of another vocabulary": {[]string{"--init", weights}, exitUsage,
			[]string{"wte.weight", "[400 8]", "[377 8]"}},
		"damaged": {[]string{"--data-set", "tokenizer=" + damaged}, exitUsage,
			[]string{damaged + ": line 2: "}},
		"missing": {[]string{"--data-set", "tokenizer=none"}, exitUsage,
			[]string{"none: no such file", "want a tokenizer.json"}},
		"no path": {[]string{"--data-set", "tokenizer="}, exitUsage,
			[]string{"--data-set tokenizer=: want the path of a tokenizer.json"}},
	} {
		t.Run(what, func(t *testing.T) {
			unwritten := filepath.Join(t.TempDir(), "out")
			refuses(t, onText(t, with(row.args, "--out", unwritten)...), row.code, row.parts...)
			if found, _ := filepath.Glob(unwritten + "/step-*"); found != nil {
				t.Error("--out was written")
			}
		})
	}
	must(t, onText(t, "--init", weights, "--set", "classes=400,context=12")...)
}

// TestTokenize: tokens that are written once train the weights that the text itself trains;
// what is wrong is named, and nothing is written.
func TestTokenize(t *testing.T) {
	dir := t.TempDir()
	line := onText(t, "--format", "json")
	text := line[slices.Index(line, "--data-dir")+1]
	_, want := lines(t, must(t, line...).stdout)
	own := filepath.Join(dir, "tokenizer.json") // is not overwritten by its tokens
	copied, err := os.ReadFile(filepath.Join(fixtureTokenizer, "tokenizer.json"))
	if err == nil {
		err = os.WriteFile(own, copied, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	refuses(t, []string{"tokenize", text, "--tokenizer", own, "--out", own}, exitUsage, "is the input "+own)
	tokens := filepath.Join(dir, "tokens.bin")
	r := must(t, "tokenize", text, "--tokenizer", fixtureTokenizer, "--out", tokens)
	_, flags, ok := strings.Cut(r.stdout, "\nto train: ")
	if !ok {
		t.Fatalf("%+v", r)
	}
	args := with([]string{"train", "--model", "gpt2", "--set", "depth=1,width=8,heads=2", "--window", "8",
		"--batch", "4", "--chunks", "2", "--steps", "1", "--format", "json"}, strings.Fields(flags)...)
	if _, got := lines(t, must(t, args...).stdout); got.ParamsSHA256 != want.ParamsSHA256 ||
		*got.TestAccuracy != *want.TestAccuracy {
		t.Errorf("%+v, want %+v", got, want)
	}
	for _, row := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"none.txt", "--tokenizer", fixtureTokenizer}, exitUsage, "none.txt: no such file"},
		{[]string{text, "--tokenizer", "none"}, exitUsage, "--tokenizer: tokenizer: stat none: no such file"},
		{[]string{textFile(t, "a.txt", ""), "--tokenizer", fixtureTokenizer}, exitUsage, "no tokens"},
		{[]string{textFile(t, "b.txt", "a\nb\xff"), "--tokenizer", fixtureTokenizer}, exitUsage,
			"b.txt: tokenizer: line 2, column 2: byte 0xff is not UTF-8"},
		{[]string{text, "--tokenizer", textFile(t, "t.json",
			`{"model":{"type":"Unigram","vocab":{"a":0}}}`)}, exitUsage,
			`model.type is "Unigram"; want BPE: for any other tokenizer make the tokens with`},
	} {
		out := filepath.Join(dir, "none.bin")
		args := with(row.args, "--out", out)
		r := command(t, with([]string{"tokenize"}, args...)...)
		if r.code != row.code || r.stdout != "" || !strings.Contains(r.stderr, row.want) {
			t.Errorf("%v: %+v, want %d, %s", args, r, row.code, row.want)
		}
		if _, err := os.Stat(out); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v: %v", args, err)
		}
	}
	before, _ := os.ReadFile(text)
	r = command(t, "tokenize", text, "--tokenizer", fixtureTokenizer, "--out", text)
	if after, err := os.ReadFile(text); r.code != exitUsage || err != nil || len(after) == 0 ||
		string(after) != string(before) {
		t.Errorf("%+v, %v", r, err)
	}
}
