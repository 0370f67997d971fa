package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"penstock.example/tokenizer"
)

// otherTokenizer is the fixture's with the numbers of two letters exchanged.
func otherTokenizer(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"vocab.json", "merges.txt"} {
		content, err := os.ReadFile(filepath.Join(fixtureTokenizer, name))
		if err != nil {
			t.Fatal(err)
		}
		if name == "vocab.json" {
			was := content
			content = bytes.Replace(content, []byte(`"e":`), []byte(`"HELD":`), 1)
			content = bytes.Replace(content, []byte(`"s":`), []byte(`"e":`), 1)
			if content = bytes.Replace(content, []byte(`"HELD":`), []byte(`"s":`), 1); bytes.Equal(content, was) {
				t.Fatal("nothing was exchanged")
			}
		}
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// A model of tokens reads those of the tokenizer that it was trained with, and no others, also as many.
func TestRefusesOtherTokens(t *testing.T) {
	out, other := filepath.Join(t.TempDir(), "out"), otherTokenizer(t)
	run := onText(t, "--out", out)
	must(t, run...)
	text := textFile(t, "b.txt", strings.Repeat("The stages of the pipeline are busy. ", 10))
	if e := evaluated(t, out, "--data-dir", text); e.Samples < 1 {
		t.Errorf("%+v", e)
	}
	evaluated(t, out, "--data", "text", "--data-dir", text, "--window", "8", "--data-set", "tokenizer="+filepath.Join(fixtureTokenizer, "vocab.json"))
	predicted(t, out, text, "--tokenizer", filepath.Join(fixtureTokenizer, "vocab.json"))
	refuses(t, []string{"eval", out, "--data", "text", "--data-dir", text, "--window", "8"}, exitUsage, "of bytes")
	sums := []string{"SHA-256"}
	for _, path := range []string{fixtureTokenizer, other} {
		opened, err := tokenizer.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		sums = append(sums, opened.Sum())
	}
	resumed := with(run, "--resume", "--steps", "2")
	for i, word := range resumed {
		resumed[i] = strings.Replace(word, "tokenizer="+fixtureTokenizer, "tokenizer="+other, 1)
	}
	for _, row := range []struct {
		args []string
		code int
	}{
		{[]string{"eval", out, "--data-set", "tokenizer=" + other}, exitUsage},
		{[]string{"predict", out, text, "--tokenizer", other}, exitUsage},
		{resumed, exitUsage},
	} {
		refuses(t, row.args, row.code, sums...)
	}
}

// Tokens of a file have the classes of the model, also where the greatest is not among them.
func TestEvalOfFewerTokens(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, greatest byte) string {
		var content []byte
		for i := range 200 {
			content = append(content, byte(i)%(greatest+1), 0)
		}
		return textFile(t, name, string(content))
	}
	out := filepath.Join(dir, "out")
	must(t, "train", "--model", "gpt", "--set", "depth=1,width=8,heads=2", "--data", "tokens", "--data-dir", file("a.bin", 20), "--window", "8", "--batch", "4", "--chunks", "1", "--steps", "1", "--out", out)
	evaluated(t, out, "--data-dir", file("b.bin", 10), "--part", "all")
	refuses(t, []string{"eval", out, "--data-dir", file("c.bin", 30)}, exitUsage, "outputs 31")
	refuses(t, []string{"eval", out, "--data-set", "classes=11", "--data-dir", file("b.bin", 10)}, exitUsage, "outputs 11")
}
