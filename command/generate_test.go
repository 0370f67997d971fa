package command

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"penstock.example/tokenizer"
	"penstock.example/train"
)

// TestBeginTokens: texts and prompts begin with the token that the tokenizer has before a text, or
// the run's.
func TestBeginTokens(t *testing.T) {
	type object = map[string]any
	var file object
	content, err := os.ReadFile(fixtureTokenizer + "/tokenizer.json")
	if err == nil {
		err = json.Unmarshal(content, &file)
	}
	file["post_processor"] = object{"type": "TemplateProcessing",
		"special_tokens": object{"<s>": object{"ids": []int{5}}},
		"single":         []object{{"SpecialToken": object{"id": "<s>"}}, {"Sequence": object{"id": "A"}}}}
	content, _ = json.Marshal(file)
	path := filepath.Join(t.TempDir(), "tokenizer.json")
	if err == nil {
		err = os.WriteFile(path, content, 0o666)
	}
	tok, wrong := tokenizer.Open(path)
	if err != nil || wrong != nil {
		t.Fatal(err, wrong)
	}
	for chosen, want := range map[string][]int32{"": {5}, "none": nil, "<|endoftext|>": {376}} {
		of := &trained{recipe: train.Recipe{Data: train.Choice{
			Settings: object{"chosen": object{"begin": chosen}}}}}
		if begin, err := of.beginTokens(tok); err != nil || !slices.Equal(begin, want) {
			t.Errorf("begin=%s: %v, %v", chosen, begin, err)
		}
	}
	a, b := textFile(t, "a.txt", "<|endoftext|>"), textFile(t, "b.txt", "")
	out := filepath.Join(t.TempDir(), "c")
	must(t, "tokenize", a, b, "--tokenizer", path, "--out", out)
	if got, err := os.ReadFile(out); err != nil || string(got) != "\x05\x00\x78\x01\x05\x00" {
		t.Errorf("tokens of two files: %x, %v", got, err)
	}
}

// TestTextOfTokens: characters are written whole, and each token is decoded once.
func TestTextOfTokens(t *testing.T) {
	tok, err := tokenizer.Open(fixtureTokenizer)
	if err != nil {
		t.Fatal(err)
	}
	const text = "\U0001f600é stages"
	ids, err := tok.Encode([]byte(text))
	if err != nil || len(ids) < 6 {
		t.Fatal(ids, err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var all wholeCharacters
	w := textWriter{tokens: tok, out: &all}
	const repeats = 1000
	for _, id := range slices.Repeat(ids, repeats) {
		if err := w.write(int64(id)); err != nil {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if want := strings.Repeat(text, repeats); string(all) != want || len(w.begun) > 0 {
		t.Errorf("%d bytes, want %d", len(all), len(want))
	}
	if each := int(after.TotalAlloc-before.TotalAlloc) / (repeats * len(ids)); each > 1000 {
		t.Errorf("%d bytes are allocated for a token", each)
	}
}

type wholeCharacters []byte

func (w *wholeCharacters) Write(text []byte) (int, error) {
	if !utf8.Valid(text) {
		return 0, fmt.Errorf("%q", text)
	}
	*w = append(*w, text...)
	return len(text), nil
}
