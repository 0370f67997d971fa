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

// TestPromptTokens: a prompt begins with the tokens that the tokenizer has before a text, if the model's
// texts do in training.
func TestPromptTokens(t *testing.T) {
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
	rest, _ := tok.Encode([]byte("The stages"))
	for _, row := range []struct {
		folder, data, begin string
		want                []int32
	}{
		{"./llama", "", "", []int32{5}}, // no run
		{"./llama", "text", "", []int32{5}},
		{"gpt", "jsonl", "", []int32{5}},
		{"gpt", "jsonl", "none", nil},
		{"gpt", "jsonl", "<|endoftext|>", []int32{376}},
		{"gpt", "text", "", nil},
	} {
		of := &trained{modelFlags: modelFlags{folder: row.folder}, recipe: train.Recipe{Data: train.Choice{Name: row.data,
			Settings: object{"chosen": object{"begin": row.begin}}}}}
		ids, err := of.promptTokens(tok, "The stages")
		if want := slices.Concat(row.want, rest); err != nil || !slices.Equal(ids, want) {
			t.Errorf("%v: %v, %v, want %v", row, ids, err, want)
		}
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
