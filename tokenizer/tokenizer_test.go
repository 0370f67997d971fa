package tokenizer_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"penstock.example/internal/disk"
	_ "penstock.example/internal/draws" // sets the number of draws
	"penstock.example/internal/must"
	"penstock.example/tokenizer"
)

func open(t *testing.T, path string) *tokenizer.Tokenizer {
	t.Helper()
	return must.Get(tokenizer.Open(path))(t)
}

// The numbers are those of the definition (scripts/fixtures/tokenizer.py), and Hugging Face's own
// library gives the same.
func TestEncode(t *testing.T) {
	apart := t.TempDir() // vocab.json and merges.txt without a tokenizer.json
	for _, name := range []string{"vocab.json", "merges.txt"} {
		write(t, filepath.Join(apart, name), read(t, "testdata/"+name))
	}
	for path, cases := range map[string]string{
		"testdata": "cases.json", "testdata/tokenizer.json": "cases.json",
		"testdata/vocab.json": "cases.json", apart: "cases.json",
		"testdata/split.json": "splitcases.json",
	} {
		tok := open(t, path)
		if tok.Len() != 377 {
			t.Errorf("%s: %d tokens, want 377", path, tok.Len())
		}
		var all []struct {
			Text string
			IDs  []int32
		}
		if err := json.Unmarshal(read(t, "testdata/"+cases), &all); err != nil || len(all) < 300 {
			t.Fatal(len(all), err)
		}
		for _, c := range all {
			ids, err := tok.Encode([]byte(c.Text))
			if err != nil || !slices.Equal(ids, c.IDs) {
				t.Errorf("%s: %q: %v, %v, want %v", path, c.Text, ids, err, c.IDs)
			}
			if text, err := tok.Decode(c.IDs); err != nil || string(text) != c.Text {
				t.Errorf("%s: decoded %q, %v, want %q", path, text, err, c.Text)
			}
		}
	}
}

// Vocabularies of SentencePiece, such as Llama 2's and Mistral's: spaces are metaspaces, characters
// that are not in the vocabulary their bytes, or unknown. The numbers are Hugging Face's
// (scripts/fixtures/metaspace.py).
func TestMetaspace(t *testing.T) {
	var file map[string]any
	must.Do(t, json.Unmarshal(read(t, "testdata/metaspace.json"), &file))
	var variants map[string]struct {
		Change map[string]any
		Cases  []struct {
			Text string
			IDs  []int32
		}
	}
	must.Do(t, json.Unmarshal(read(t, "testdata/metaspacecases.json"), &variants))
	for name, v := range variants {
		changed := maps.Clone(file)
		maps.Copy(changed, v.Change)
		path := filepath.Join(t.TempDir(), "t.json")
		write(t, path, must.Get(json.Marshal(changed))(t))
		tok := open(t, path)
		for _, c := range v.Cases {
			ids, err := tok.Encode([]byte(c.Text))
			if err != nil || !slices.Equal(ids, c.IDs) {
				t.Errorf("%s: %q: %v, %v, want %v", name, c.Text, ids, err, c.IDs)
			}
			if strings.ContainsAny(c.Text, "😀▁<") { // unknown, or no text
				continue
			}
			back, err := tok.Decode(ids)
			if err != nil || string(back) != c.Text && string(back) != " "+c.Text {
				t.Errorf("%s: decoded %q, %v, want %q", name, back, err, c.Text)
			}
		}
		if len(v.Cases) < 50 {
			t.Errorf("%s: %d cases", name, len(v.Cases))
		}
	}
}

// A pattern that takes for ever on a text ends with an error, and so do added tokens that no pattern
// can have.
func TestPatternsAreBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.json")
	write(t, path, small(map[string]any{"pre_tokenizer": map[string]any{"type": "Split",
		"behavior": "Isolated",
		"pattern":  map[string]any{"Regex": "(?:(?:a|b|ab)+)+c"}}}))
	tok := open(t, path)
	if before := tok.SetTimeout(time.Millisecond); before != disk.MaxSearch {
		t.Errorf("a search may take %v", before)
	}
	_, err := tok.Encode(bytes.Repeat([]byte("ab"), 200))
	wantError(t, err, "match timeout", "want one that needs less time")
	if len(err.Error()) > 2000 {
		t.Errorf("an error of %d bytes", len(err.Error()))
	}
	write(t, path, small(map[string]any{"added_tokens": []map[string]any{{"id": 10,
		"content": strings.Repeat("a", 1<<20+1)}}}))
	_, err = tokenizer.Open(path)
	wantError(t, err, "added_tokens have 1048577 bytes; want at most 1048576")
}

// Every text of UTF-8 is had back, also what no pattern has thought of.
func TestRoundTrip(t *testing.T) {
	toks := []*tokenizer.Tokenizer{open(t, "testdata/tokenizer.json"), open(t, "testdata/split.json")}
	rapid.Check(t, func(r *rapid.T) {
		text := strings.Join(rapid.SliceOf(rapid.OneOf(rapid.String(),
			rapid.SampledFrom([]string{"stages", " the", "\n\n ", "<|endoftext|>",
				"'ll"}))).Draw(r, "text"), "")
		for _, tok := range toks {
			ids := must.Get(tok.Encode([]byte(text)))(r)
			if back, err := tok.Decode(ids); err != nil || string(back) != text {
				r.Fatalf("%q, %v", back, err)
			}
		}
	})
}

// A long text is searched in windows, a piece at a time, with the same pieces; a piece of a million
// letters takes no time that grows with its square.
func TestLong(t *testing.T) {
	type both struct{ whole, windows *tokenizer.Tokenizer }
	var all []both
	for _, path := range []string{"testdata/tokenizer.json", "testdata/split.json"} {
		b := both{open(t, path), open(t, path)}
		b.windows.SetWindow(2048)
		all = append(all, b)
	}
	rapid.Check(t, func(r *rapid.T) {
		words := rapid.SliceOfN(rapid.SampledFrom([]string{"the stages", " ", "  ", "\n", "東京", "7",
			strings.Repeat(" ", 900), strings.Repeat("x", 3000)}), 10, 60).Draw(r, "words")
		text := []byte(strings.Join(words, ""))
		for _, b := range all {
			want := must.Get(b.whole.Encode(text))(r)
			if got, err := b.windows.Encode(text); err != nil || !slices.Equal(got, want) {
				r.Fatalf("%v: %d tokens, want %d", err, len(got), len(want))
			}
		}
	})
	tok, text := open(t, "testdata"), bytes.Repeat([]byte("stages"), 200_000)
	ids := must.Get(tok.Encode(text))(t)
	if back, err := tok.Decode(ids); err != nil || !bytes.Equal(back, text) || len(ids) >= len(text) {
		t.Errorf("%d tokens, %v", len(ids), err)
	}
}

// What a small tokenizer.json may say otherwise.
func TestVariants(t *testing.T) {
	for name, row := range map[string]struct {
		change map[string]any
		text   string
		want   []int32
	}{
		// a=0 b=1 c=2 ab=3 bc=4 abc=5 é=6 Ġ=9; merges bc, ab, ab c
		"earliest merge first": {nil, "abc", []int32{0, 4}},
		"leftmost of equals":   {nil, "ababb", []int32{3, 3, 1}},
		"merged over spaces": {map[string]any{"vocab": map[string]int{"a": 0, "b": 1, "▁": 2, "a▁": 3},
			"merges": []string{"a ▁"}, "pre_tokenizer": map[string]any{"type": "Metaspace",
				"replacement": "▁", "prepend_scheme": "first", "split": false}}, "a b", []int32{2, 3, 1}},
		"words first": {map[string]any{"ignore_merges": true}, "abc", []int32{5}},
		"composed": {map[string]any{"normalizer": map[string]any{"type": "NFC"}}, "ae\u0301",
			[]int32{0, 6}},
		"space in front": {map[string]any{"pre_tokenizer": map[string]any{"type": "ByteLevel"}}, "ab",
			[]int32{9, 3}},
		"no second space": {map[string]any{"pre_tokenizer": map[string]any{"type": "ByteLevel"}},
			" ab", []int32{9, 3}},
		"split by a string": {map[string]any{"pre_tokenizer": map[string]any{"type": "Split",
			"pattern": map[string]any{"String": "b"}, "behavior": "Isolated"}}, "abc", []int32{0, 1, 2}},
		"matches removed": {map[string]any{"pre_tokenizer": map[string]any{"type": "Split",
			"pattern": map[string]any{"String": "x"}, "behavior": "Removed"}}, "axb", []int32{0, 1}},
		"only matches": {map[string]any{"pre_tokenizer": map[string]any{"type": "Split",
			"pattern": map[string]any{"Regex": "[abc]"}, "behavior": "Removed", "invert": true}}, "axb c",
			[]int32{0, 1, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "t.json")
			write(t, path, small(row.change))
			ids, err := open(t, path).Encode([]byte(row.text))
			if err != nil || !slices.Equal(ids, row.want) {
				t.Errorf("%v, %v; want %v", ids, err, row.want)
			}
		})
	}
}

// small is a tokenizer.json of few tokens, with changes to it or its model.
func small(change map[string]any) []byte {
	model := map[string]any{"type": "BPE",
		"vocab":  map[string]int{"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4, "abc": 5, "é": 6, "Ġ": 9},
		"merges": []string{"b c", "a b", "ab c"},
	}
	file := map[string]any{"model": model}
	for name, value := range change {
		if strings.HasSuffix(name, "izer") || name == "added_tokens" || name == "post_processor" {
			file[name] = value
		} else {
			model[name] = value
		}
	}
	content, err := json.Marshal(file)
	if err != nil {
		panic(err)
	}
	return content
}

// markers are added tokens of small.
var markers = []map[string]any{{"id": 7, "content": "<s>"}, {"id": 8, "content": "</s>"}}

// processor is a TemplateProcessing; A is the text, other names are tokens.
func processor(pieces ...string) map[string]any {
	var single []map[string]any
	for _, name := range pieces {
		kind := "SpecialToken"
		if name == "A" {
			kind = "Sequence"
		}
		single = append(single, map[string]any{kind: map[string]any{"id": name, "type_id": 0}})
	}
	type token = struct {
		IDs []int32 `json:"ids"`
	}
	return map[string]any{"type": "TemplateProcessing", "single": single, "special_tokens": map[string]token{
		"<s>": {[]int32{7}}, "</s>": {[]int32{8}}, "<both>": {[]int32{7, 8}}, "<none>": {[]int32{12}}}}
}

// The numbers are those of transformers 5.24: PreTrainedTokenizerFast(tokenizer_file=...)("abcb").input_ids.
func TestTemplate(t *testing.T) {
	bytes := map[string]any{"type": "ByteLevel", "add_prefix_space": true}
	for name, row := range map[string]struct {
		processor map[string]any
		want      []int32
	}{
		"none":    {nil, []int32{0, 4, 1}},
		"bytes":   {bytes, []int32{0, 4, 1}},
		"begin":   {processor("<s>", "A"), []int32{7, 0, 4, 1}},
		"both":    {processor("<s>", "A", "</s>"), []int32{7, 0, 4, 1, 8}},
		"several": {processor("<both>", "A", "</s>", "</s>"), []int32{7, 8, 0, 4, 1, 8, 8}},
		"sequence": {map[string]any{"type": "Sequence",
			"processors": []any{bytes, processor("<s>", "A")}}, []int32{7, 0, 4, 1}},
	} {
		path := filepath.Join(t.TempDir(), "t.json")
		write(t, path, small(map[string]any{"added_tokens": markers, "post_processor": row.processor}))
		tok := open(t, path)
		begin, end := tok.Template()
		got := slices.Concat(begin, must.Get(tok.Encode([]byte("abcb")))(t), end)
		if !slices.Equal(got, row.want) {
			t.Errorf("%s: %v, want %v", name, got, row.want)
		}
	}
}

func TestRefuses(t *testing.T) {
	type change = map[string]any
	added := func(fields change) change { return change{"added_tokens": []change{fields}} }
	for name, row := range map[string]struct {
		content []byte
		want    string
	}{
		"empty":     {nil, "line 1: jsontext: unexpected EOF"},
		"cut short": {read(t, "testdata/tokenizer.json")[:3000], "the file may be damaged, or cut short"},
		"no JSON":   {[]byte("{\n\n?"), "line 3: "},
		"another file": {[]byte(`{"architectures": ["GPT2LMHeadModel"]}`),
			"model.vocab has no tokens; want a tokenizer.json of byte-pair encoding"},
		"WordPiece":  {small(change{"type": "WordPiece"}), `model.type is "WordPiece"; want BPE`},
		"dropout":    {small(change{"dropout": 0.1}), "model has the dropout 0.1"},
		"vocabulary": {small(change{"vocab": 1}), `within "/model/vocab"`},
		"empty token": {small(change{"vocab": change{"": 1}}),
			`token "" is in the vocabulary; want no empty one`},
		"negative": {small(change{"vocab": change{"a": -1}}),
			`token "a" is -1; want a number from 0 to 1048575`},
		"token twice": {[]byte(`{"model": {"vocab": {"a": 0, "a": 1}}}`),
			`duplicate object member name "a" within "/model/vocab"`},
		"number twice": {small(change{"vocab": change{"a": 3, "b": 3}}),
			`tokens "a" and "b" are both 3; want a number for each`},
		"merge of three": {small(change{"merges": []string{"a b c"}}),
			`the merge ["a" "b" "c"]; want two tokens with a space between`},
		"merge of unknown": {small(change{"merges": []string{"b c", "x b"}}),
			`merge 2, of "x" and "b": "x" is not in the vocabulary`},
		"merge to unknown": {small(change{"merges": []string{"c c"}}),
			`merge 1, of "c" and "c": "cc" is not in the vocabulary; want the merges that were learned ` +
				`with it`},
		"normalizer": {small(change{"normalizer": change{"type": "Lowercase"}}),
			"normalizer is Lowercase; want none, or one of NFC"},
		"pre-tokenizer": {small(change{"pre_tokenizer": change{"type": "Punctuation"}}),
			"pre_tokenizer is Punctuation; want ByteLevel, Split, Digits, Metaspace, or a Sequence of them"},
		"another space": {small(change{"pre_tokenizer": change{"type": "Metaspace", "replacement": "_"}}),
			"want the replacement ▁, prepend_scheme first and split false"},
		"a prefix alone": {small(change{"normalizer": change{"type": "Prepend", "prepend": "▁"}}),
			"want a normalizer with a Prepend and then a Replace"},
		"unknown token": {small(change{"unk_token": "?"}),
			`model.unk_token is "?"; want a token of model.vocab`},
		"pattern": {small(change{"pre_tokenizer": change{"type": "Split",
			"pattern": change{"Regex": "("}, "behavior": "Isolated"}}), `the pattern "("`},
		"after ByteLevel": {small(change{"pre_tokenizer": change{"type": "Sequence",
			"pretokenizers": []change{{"type": "ByteLevel"}, {"type": "Digits"}}}}),
			"Digits after ByteLevel; want ByteLevel last"},
		"space in pieces": {small(change{"pre_tokenizer": change{"type": "Sequence",
			"pretokenizers": []change{{"type": "Digits"}, {"type": "ByteLevel"}}}}),
			"want add_prefix_space false"},
		"stripping": {small(added(change{"id": 10, "content": "<m>", "lstrip": true})),
			`added token "<m>" has single_word, lstrip or rstrip; want none`},
		"added, other": {small(added(change{"id": 10, "content": "a"})),
			`token "a" is 0 in model.vocab and 10 in added_tokens; want one number`},
		"added, same": {small(added(change{"id": 1, "content": "<m>"})),
			`tokens "<m>" and "b" are both 1`},
		"template beyond the vocabulary": {small(change{"post_processor": processor("<none>", "A")}),
			`post_processor: the token "<none>" is [12]; want a token of the vocabulary`},
		"template of no token": {small(change{"post_processor": processor("<x>", "A")}),
			`post_processor: the token "<x>" is []; want`},
		"field": {small(change{"added_tokens": 1}), `within "/added_tokens"`},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "t.json")
			write(t, path, row.content)
			_, err := tokenizer.Open(path)
			wantError(t, err, "tokenizer: "+path+": ", row.want)
		})
	}
	for name, row := range map[string]struct {
		vocabulary, merges string
		want               string
	}{
		"damaged merge": {`{"a": 0}`, "#version: 0.2\na b\n\na\n",
			`merges.txt: line 4: the merge ["a"]; want two tokens with a space between`},
		"other merges": {`{"a": 0}`, "a a",
			`vocab.json and merges.txt: merge 1, of "a" and "a": "aa" is not in the vocabulary`},
		"no vocabulary": {`[`, "", "vocab.json: line 1: "},
	} {
		t.Run(name, func(t *testing.T) {
			directory := t.TempDir()
			write(t, filepath.Join(directory, "vocab.json"), []byte(row.vocabulary))
			write(t, filepath.Join(directory, "merges.txt"), []byte(row.merges))
			_, err := tokenizer.Open(directory)
			wantError(t, err, row.want)
		})
	}
	directory := t.TempDir()
	for _, path := range []string{directory, filepath.Join(directory, "no.json")} {
		_, err := tokenizer.Open(path)
		wantError(t, err, "no such file",
			"want a tokenizer.json, a vocab.json with a merges.txt beside it, or a directory with them")
	}
	write(t, filepath.Join(directory, "vocab.json"), []byte(`{"a": 0}`))
	_, err := tokenizer.Open(filepath.Join(directory, "vocab.json"))
	wantError(t, err, "merges.txt: no such file")
}

func TestRefusesText(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.json")
	write(t, path, small(map[string]any{"added_tokens": []map[string]any{{"id": 10, "content": "<m>"}}}))
	tok := open(t, path)
	for text, want := range map[string]string{
		"ab\ncab\xff": "tokenizer: line 2, column 4: byte 0xff is not UTF-8; want text in UTF-8",
		"ab<m>c\x00": `line 1, column 6: in the piece "c\x00", '\x00' (U+0000) is not in the ` +
			`vocabulary; want a text without it`,
	} {
		_, err := tok.Encode([]byte(text))
		wantError(t, err, want)
	}
	for _, ids := range [][]int32{{0, -1}, {0, 11}} {
		_, err := tok.Decode(ids)
		wantError(t, err, "tokenizer: token 2 of 2 is ",
			"want the number of a token, from 0 to 10: it may be of another tokenizer")
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	return must.Get(os.ReadFile(path))(t)
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	must.Do(t, os.WriteFile(path, content, 0o666))
}

func wantError(t *testing.T, err error, want ...string) {
	t.Helper()
	for _, w := range want {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("%v, want %q", err, w)
		}
	}
}

// TestEncodeParts: the parts are the whole, each of some thousands of tokens, and what is done grows to the
// end of the text; an error of yield ends it.
func TestEncodeParts(t *testing.T) {
	for _, path := range []string{"testdata/tokenizer.json", "testdata/split.json"} {
		tok, text := open(t, path), bytes.Repeat([]byte("The stages of a pipeline.\n"), 20_000)
		want := must.Get(tok.Encode(text))(t)
		var got []int32
		parts, before := 0, 0
		err := tok.EncodeParts(text, func(ids []int32, done int) error {
			if done < before || done > len(text) || len(ids) > 1<<15 {
				t.Errorf("%s: %d tokens, %d bytes done after %d", path, len(ids), done, before)
			}
			got, before, parts = append(got, ids...), done, parts+1
			return nil
		})
		if err != nil || !slices.Equal(got, want) || before != len(text) || parts < 5 {
			t.Errorf("%s: %d tokens in %d parts, %d bytes, %v; want %d tokens", path, len(got), parts,
				before, err, len(want))
		}
		stop, calls := errors.New("stop"), 0
		if err := tok.EncodeParts(text, func([]int32, int) error { calls++; return stop }); err != stop ||
			calls != 1 {
			t.Errorf("%v after %d calls", err, calls)
		}
	}
}
