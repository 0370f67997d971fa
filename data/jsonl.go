package data

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"penstock.example/internal/disk"
	"penstock.example/tokenizer"
)

// Ignored is the target of a token that no loss is taken of: of a prompt, and of padding.
const Ignored = -100

// JSONL configures the set named jsonl.
type JSONL struct {
	// Apart gives each text a sample of its own, cut after the window, or padded with targets that are
	// Ignored. Otherwise all texts are joined and cut into samples of the window.
	Apart bool
	// Begin and End are tokens around each text, such as "<|endoftext|>"; Begin may be "none". If they are
	// empty, they are the tokenizer's (tokenizer.Tokenizer.Template), or else End is the first of
	// <|endoftext|>, <|end_of_text|>, <|im_end|>, </s> that the tokenizer has.
	Begin, End string
}

// jsonlSet is a Dataset of texts with targets for some of their tokens. Sample i has the window+1 tokens
// from i·(window+1) on.
type jsonlSet struct {
	info    Info
	tokens  []int32
	targets []int32 // the tokens, or Ignored
}

func (s *jsonlSet) Len() int   { return len(s.tokens) / (s.info.Input.Size() + 1) }
func (s *jsonlSet) Info() Info { return s.info }

func (s *jsonlSet) Fill(batch *Batch, indices []int) error {
	if err := batch.resize(s, indices); err != nil {
		return err
	}
	window := s.info.Input.Size()
	for row, index := range indices {
		at := index * (window + 1)
		for i := range window {
			batch.Input.Int64[row*window+i] = int64(s.tokens[at+i])
			batch.Target.Int64[row*window+i] = int64(s.targets[at+i+1])
		}
	}
	return nil
}

// openJSONL reads lines of {"text": ...}, or of {"prompt": ..., "completion": ...}, whose prompts are
// Ignored.
func openJSONL(paths []string, o Options) (train, test Dataset, err error) {
	if o.Tokenizer == "" {
		return nil, nil, &ConfigError{Field: "Tokenizer", Value: "", Remedy: "want a tokenizer for the texts"}
	}
	t, err := o.openTokenizer()
	if err != nil {
		return nil, nil, err
	}
	var sets []*jsonlSet
	for _, path := range paths {
		s := &jsonlSet{info: Info{Name: "jsonl", Classes: t.Len(), Source: Int64, Tokenizer: t.Sum(),
			Input: Spec{Int64, []int64{int64(o.Window)}}}}
		s.info.Target = s.info.Input
		if err := s.read(path, t, o); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", path, err)
		}
		sets = append(sets, s)
	}
	return trainAndTest(o, sets)
}

// line is a line of a file, with either Text or both others.
type line struct{ Text, Prompt, Completion *string }

func (s *jsonlSet) read(path string, t *tokenizer.Tokenizer, o Options) error {
	content, err := disk.Read(path, MaxText)
	if err != nil {
		return err
	}
	begin, end := t.Template()
	switch o.JSONL.Begin {
	case "":
	case "none":
		begin = nil
	default:
		begin, err = specialToken(t, o.JSONL.Begin)
	}
	if err == nil && (o.JSONL.End != "" || end == nil) {
		end, err = endToken(t, o.JSONL.End)
	}
	if err != nil {
		return err
	}
	number := 0
	for text := range bytes.Lines(content) {
		number++
		if text = bytes.TrimSpace(text); len(text) == 0 {
			continue
		}
		var l line
		err := json.Unmarshal(text, &l)
		switch {
		case err != nil:
		case (l.Text != nil) == (l.Prompt != nil) || (l.Prompt != nil) != (l.Completion != nil):
			err = errors.New(`want {"text": "..."}, or {"prompt": "...", "completion": "..."}`)
		case l.Text != nil:
			err = s.add(t, begin, *l.Text, "", end, o)
		default:
			err = s.add(t, begin, *l.Completion, *l.Prompt, end, o)
		}
		if err != nil {
			return fmt.Errorf("line %d: %w", number, err)
		}
	}
	size := o.Window + 1
	if rest := len(s.tokens) % size; len(s.tokens) < size {
		return fmt.Errorf("%d tokens; want at least %d for one sample: more text or a shorter window",
			len(s.tokens), size)
	} else if rest > 0 {
		s.tokens, s.targets = s.tokens[:len(s.tokens)-rest], s.targets[:len(s.targets)-rest]
	}
	if !slices.ContainsFunc(s.targets, func(id int32) bool { return id != Ignored }) {
		return fmt.Errorf("no token of a completion is within the %d tokens of a sample; want a longer window",
			size)
	}
	return nil
}

// add appends a text after a prompt that is not trained.
func (s *jsonlSet) add(t *tokenizer.Tokenizer, begin []int32, text, prompt string, end []int32,
	o Options) error {
	asked, err := t.Encode([]byte(prompt))
	if err != nil {
		return err
	}
	said, err := t.Encode([]byte(text))
	if err != nil {
		return err
	}
	tokens := slices.Concat(begin, asked, said, end)
	targets := slices.Clone(tokens)
	for i := range len(begin) + len(asked) {
		targets[i] = Ignored
	}
	if o.JSONL.Apart {
		size := o.Window + 1
		for len(tokens) < size {
			tokens, targets = append(tokens, 0), append(targets, Ignored)
		}
		tokens, targets = tokens[:size], targets[:size]
	}
	s.tokens, s.targets = append(s.tokens, tokens...), append(s.targets, targets...)
	return nil
}

// specialToken returns the token that text is.
func specialToken(t *tokenizer.Tokenizer, text string) ([]int32, error) {
	ids, err := t.Encode([]byte(text))
	if err == nil && len(ids) != 1 {
		err = fmt.Errorf("%q is %d tokens; want a text that the tokenizer has as one", text, len(ids))
	}
	return ids, err
}

// endToken returns the token after each text.
func endToken(t *tokenizer.Tokenizer, text string) ([]int32, error) {
	if text != "" {
		return specialToken(t, text)
	}
	usual := []string{"<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "</s>"}
	for _, text := range usual {
		if ids, err := specialToken(t, text); err == nil {
			return ids, nil
		}
	}
	return nil, &ConfigError{Field: "End", Value: "",
		Remedy: "want the token after each text: the tokenizer has no " + strings.Join(usual, ", ")}
}
