package data_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"penstock.example/data"
	"penstock.example/internal/must"
	"penstock.example/tokenizer"
)

const jsonlTokenizer = "../tokenizer/testdata/tokenizer.json"

func openJSONL(t *testing.T, content string, settings ...string) (train, test data.Dataset, err error) {
	directory := directoryOf(t, map[string][]byte{"a.jsonl": []byte(content)})
	o := data.Options{Window: 6}
	must.Do(t, data.Set("jsonl", &o, append([]string{"tokenizer=" + jsonlTokenizer}, settings...)))
	return data.Open("jsonl", directory+"/a.jsonl", o)
}

// TestJSONLIgnoresPromptsAndPadding: targets are the tokens of texts and completions, and the token after
// each.
func TestJSONLIgnoresPromptsAndPadding(t *testing.T) {
	tok := must.Get(tokenizer.Open(jsonlTokenizer))(t)
	encode := func(text string) (ids []int64) {
		for _, id := range must.Get(tok.Encode([]byte(text)))(t) {
			ids = append(ids, int64(id))
		}
		return ids
	}
	end := encode("<|endoftext|>")
	lines := `{"prompt": "abc", "completion": "de", "id": 1}` + "\n\n" + `{"text": "fg"}` + "\n"
	var tokens, targets []int64
	for _, text := range []struct{ prompt, said string }{{"abc", "de"}, {"", "fg"}} {
		asked, said := encode(text.prompt), append(encode(text.said), end...)
		tokens = slices.Concat(tokens, asked, said)
		for range asked {
			targets = append(targets, data.Ignored)
		}
		targets = append(targets, said...)
	}
	if len(end) != 1 || len(tokens) < 7 {
		t.Fatalf("the texts are %v", tokens)
	}
	t.Run("joined", func(t *testing.T) {
		var text string
		for range 4 {
			text += lines
		}
		train, test, err := openJSONL(t, text)
		must.Do(t, err)
		all, allTargets := slices.Repeat(tokens, 4), slices.Repeat(targets, 4)
		var got, want []string
		for i := range train.Len() + test.Len() {
			row := fill(t, data.Join(train, test), i)
			got = append(got, fmt.Sprint(row.Input.Int64, row.Target.Int64))
			want = append(want, fmt.Sprint(all[7*i:][:6], allTargets[7*i+1:][:6]))
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) || len(want) != len(all)/7 {
			t.Errorf("samples are %v, want %v", got, want)
		}
	})
	t.Run("apart", func(t *testing.T) {
		train, test, err := openJSONL(t, lines, "apart=1")
		must.Do(t, err)
		if train.Len() != 1 || test.Len() != 1 {
			t.Fatalf("%d and %d samples", train.Len(), test.Len())
		}
		first := fill(t, train, 0)
		if first.Input.Int64[0] != tokens[0] {
			first = fill(t, test, 0)
		}
		asked := len(encode("abc"))
		for i := range 6 {
			token, target := int64(0), int64(data.Ignored)
			said := len(encode("abc")) + len(encode("de")) + 1
			if i < said {
				token = tokens[i]
			}
			if i+1 >= asked && i+1 < said {
				target = tokens[i+1]
			}
			if first.Input.Int64[i] != token || first.Target.Int64[i] != target {
				t.Errorf("token %d is %d with the target %d, want %d and %d", i, first.Input.Int64[i],
					first.Target.Int64[i], token, target)
			}
		}
	})
}

// The special tokens of templated's tokenizers.
const first, last, eot = 377, 378, 376

// templated returns the path of a tokenizer that puts special tokens around a text.
func templated(t *testing.T, before, after bool) string {
	t.Helper()
	var file map[string]any
	must.Do(t, json.Unmarshal(must.Get(os.ReadFile(jsonlTokenizer))(t), &file))
	type object = map[string]any
	file["added_tokens"] = []object{{"id": eot, "content": "<|endoftext|>"}, {"id": first, "content": "<s>"},
		{"id": last, "content": "</s>"}}
	special := func(name string) object { return object{"SpecialToken": object{"id": name}} }
	template := []object{{"Sequence": object{"id": "A"}}}
	if before {
		template = slices.Insert(template, 0, special("<s>"))
	}
	if after {
		template = append(template, special("</s>"))
	}
	file["post_processor"] = object{"type": "TemplateProcessing", "single": template,
		"special_tokens": object{"<s>": object{"ids": []int{first}}, "</s>": object{"ids": []int{last}}}}
	return directoryOf(t, map[string][]byte{"t.json": must.Get(json.Marshal(file))(t)}) + "/t.json"
}

// TestJSONLTemplate: texts have the tokens around them that the tokenizer says, or the settings.
func TestJSONLTemplate(t *testing.T) {
	for _, row := range []struct {
		before, after bool
		settings      []string
		begin, end    []int64
	}{
		{true, false, nil, []int64{first}, []int64{eot}},
		{true, true, nil, []int64{first}, []int64{last}},
		{true, true, []string{"end=<|endoftext|>"}, []int64{first}, []int64{eot}},
		{true, false, []string{"begin=none"}, nil, []int64{eot}},
		{true, false, []string{"begin=</s>"}, []int64{last}, []int64{eot}},
		{false, false, nil, nil, []int64{eot}},
	} {
		path := templated(t, row.before, row.after)
		want := slices.Clone(row.begin)
		for _, id := range must.Get(must.Get(tokenizer.Open(path))(t).Encode([]byte("ab")))(t) {
			want = append(want, int64(id))
		}
		want = append(want, row.end...)
		train, _, err := openJSONL(t, strings.Repeat(`{"text": "ab"}`+"\n", 4),
			append(row.settings, "apart=1", "tokenizer="+path)...)
		must.Do(t, err)
		if got := fill(t, train, 0).Input.Int64[:len(want)]; !slices.Equal(got, want) {
			t.Errorf("%+v: %v, want %v", row, got, want)
		}
	}
}

// TestTextTemplate: each file of a text has the tokenizer's tokens around it, and an input the
// first of them.
func TestTextTemplate(t *testing.T) {
	directory := directoryOf(t, map[string][]byte{"a.txt": []byte("ab"), "b.txt": []byte("ab")})
	path := templated(t, true, true)
	tok := must.Get(tokenizer.Open(path))(t)
	want := []int64{first}
	for _, id := range must.Get(tok.Encode([]byte("ab")))(t) {
		want = append(want, int64(id))
	}
	train, test := open(t, "text", directory, data.Options{Window: len(want), Tokenizer: path})
	for _, set := range []data.Dataset{train, test} {
		row := fill(t, set, 0)
		if got := append(row.Input.Int64, row.Target.Int64[len(want)-1]); set.Len() != 1 ||
			!slices.Equal(got, append(slices.Clone(want), last)) {
			t.Errorf("%d samples such as %v, want 1 of %v and %d", set.Len(), got, want, last)
		}
	}
	x := must.Get(data.NewInputs(train.Info(), tok, []string{directory + "/a.txt"}))(t)
	if got := fill(t, x, 0).Input.Int64; x.Length(0) != len(want) || !slices.Equal(got, want) {
		t.Errorf("an input is %v of length %d, want %v", got, x.Length(0), want)
	}
}

func TestJSONLRefuses(t *testing.T) {
	for _, row := range []struct {
		content  string
		settings []string
		want     string
	}{
		{`{"text": "abcdefghijkl"`, nil, "line 1: unexpected end of JSON"},
		{`{"text": "abc"}` + "\n" + `{"messages": []}`, nil, `line 2: want {"text": "..."}, or {"prompt"`},
		{`{"prompt": "abc"}`, nil, `line 1: want {"text": "..."}`},
		{`{"text": "a"}`, nil, "tokens; want at least 7 for one sample"},
		{`{"prompt": "abcdefghijklmnopqrstuvwxyz0123456789", "completion": "a"}`, []string{"apart=1"},
			"want a longer window"},
		{`{"text": "abc"}`, []string{"end=abc def ghi"}, "want a text that the tokenizer has as one"},
	} {
		_, _, err := openJSONL(t, row.content, row.settings...)
		wantError(t, err, "a.jsonl", row.want)
	}
	_, _, err := data.Open("jsonl", directoryOf(t, map[string][]byte{"a.jsonl": nil})+"/a.jsonl",
		data.Options{})
	wantError(t, err, "Tokenizer", "want a tokenizer for the texts")
}

// TestJSONLEncodesPromptsWithCompletions: a line is encoded as the text that a model reads, so a
// completion begins with no metaspace of its own. Tokens are targets from the first that the prompt
// alone lacks.
func TestJSONLEncodesPromptsWithCompletions(t *testing.T) {
	const fixtures = "../tokenizer/testdata/metaspace"
	file, variants := map[string]any{}, map[string]struct{ Change map[string]any }{}
	must.Do(t, json.Unmarshal(must.Get(os.ReadFile(fixtures+".json"))(t), &file))
	must.Do(t, json.Unmarshal(must.Get(os.ReadFile(fixtures+"cases.json"))(t), &variants))
	for name, v := range variants {
		changed := maps.Clone(file)
		maps.Copy(changed, v.Change)
		path := directoryOf(t, map[string][]byte{"t.json": must.Get(json.Marshal(changed))(t)}) + "/t.json"
		tok := must.Get(tokenizer.Open(path))(t)
		for _, line := range [][2]string{{"the", " stages"}, {"the s", "tages"}, {"the ", "stages"}} {
			whole := must.Get(tok.Encode([]byte(line[0] + line[1])))(t)
			asked := must.Get(tok.Encode([]byte(line[0])))(t)
			var tokens, targets []int64
			for i, id := range append(whole, 2) { // </s>
				tokens = append(tokens, int64(id))
				targets = append(targets, int64(id))
				if len(asked) > i && slices.Equal(whole[:i+1], asked[:i+1]) {
					targets[i] = data.Ignored
				}
			}
			text := fmt.Sprintf(`{"prompt": %q, "completion": %q}`+"\n", line[0], line[1])
			o := data.Options{Window: len(tokens) - 1}
			must.Do(t, data.Set("jsonl", &o, []string{"apart=1", "tokenizer=" + path}))
			train, _, err := data.Open("jsonl",
				directoryOf(t, map[string][]byte{"a.jsonl": []byte(text + text)})+"/a.jsonl", o)
			must.Do(t, err)
			row := fill(t, train, 0)
			if last := len(tokens) - 1; !slices.Equal(row.Input.Int64, tokens[:last]) ||
				!slices.Equal(row.Target.Int64, targets[1:]) {
				t.Errorf("%s: %q: %v with the targets %v, want %v and %v", name, line, row.Input.Int64,
					row.Target.Int64, tokens[:last], targets[1:])
			}
		}
	}
}
