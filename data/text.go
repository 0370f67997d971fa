package data

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"penstock.example/internal/arg"
	"penstock.example/internal/disk"
	"penstock.example/tokenizer"
)

// MaxText is the most bytes of text that Open reads, of all files together: they are held in
// memory.
const MaxText = 4 << 30

// What Open takes for Options that are zero.
const (
	defaultWindow  = 128
	defaultHoldout = 0.1
)

// Text is a Dataset for language models over bytes, which are 256 classes, or over tokens: Int64
// inputs and targets of window of them each. Sample i is the window+1 from i·(window+1) on, so that
// none is in two samples; its input is all of them but the last and its target all but the first.
// What follows the last whole sample is left out.
type Text struct {
	info   Info
	bytes  []byte // nil if it is of tokens
	tokens []int32
}

// NewText returns a data set of the content, which it keeps. It returns an error if window is below
// one or the content is shorter than one sample.
func NewText(content []byte, window int) (*Text, error) {
	return newText(&Text{bytes: content, info: Info{Classes: 256, Source: Uint8}}, window)
}

// NewTokens returns a data set of the tokens, which it keeps: the Len of the tokenizer that made them
// is how many classes there are. It returns an error if window is below one, there are fewer tokens
// than one sample has, or a token is no class.
//
//	ids, err := t.Encode(text) // a tokenizer.Tokenizer
//	set, err := data.NewTokens(ids, t.Len(), 128)
func NewTokens(tokens []int32, classes, window int) (*Text, error) {
	for i, token := range tokens {
		if token < 0 || int(token) >= classes {
			return nil, fmt.Errorf("data: text: token %d is %d; want 0 to %d: more classes, or the tokenizer that they were counted for", i, token, classes-1)
		}
	}
	return newText(&Text{tokens: tokens, info: Info{Classes: classes, Source: Int64}}, window)
}

func newText(t *Text, window int) (*Text, error) {
	if window < 1 {
		return nil, arg.AtLeast("data: text", "Window", window, 1)
	}
	if t.size() <= window {
		return nil, fmt.Errorf("data: text: %s, expected at least %d for one sample: a longer text or a shorter window", t.sizeText(), int64(window)+1)
	}
	spec := Spec{Int64, []int64{int64(window)}}
	t.info.Name, t.info.Input, t.info.Target = "text", spec, spec
	return t, nil
}

func (t *Text) window() int { return int(t.info.Input.Shape[0]) }
func (t *Text) size() int   { return max(len(t.bytes), len(t.tokens)) }

func (t *Text) sizeText() string {
	if t.tokens != nil {
		return fmt.Sprintf("%d tokens", len(t.tokens))
	}
	return fmt.Sprintf("%d bytes", len(t.bytes))
}

// part is the bytes or tokens from one to another.
func (t *Text) part(from, to int) *Text {
	out := *t
	if t.tokens != nil {
		out.tokens = t.tokens[from:to]
	} else {
		out.bytes = t.bytes[from:to]
	}
	return &out
}

// Len implements Dataset.
func (t *Text) Len() int { return t.size() / (t.window() + 1) }

// Info implements Dataset.
func (t *Text) Info() Info { return t.info }

// Fill implements Dataset.
func (t *Text) Fill(batch *Batch, indices []int) error {
	if err := batch.resize(t, indices); err != nil {
		return err
	}
	if t.tokens != nil {
		fillText(batch, t.tokens, t.window(), indices)
	} else {
		fillText(batch, t.bytes, t.window(), indices)
	}
	return nil
}

func fillText[T byte | int32](batch *Batch, content []T, window int, indices []int) {
	for row, index := range indices {
		sample := content[index*(window+1):][:window+1]
		input, target := batch.Input.Int64[row*window:][:window], batch.Target.Int64[row*window:][:window]
		for i := range window {
			input[i], target[i] = int64(sample[i]), int64(sample[i+1])
		}
	}
}

// openText reads the text at path and splits off its last samples for testing: the share o.Holdout,
// at least one.
func openText(path string, o Options) (train, test Dataset, err error) {
	window := o.Window
	if window == 0 {
		window = defaultWindow
	}
	paths, err := textPaths(path)
	if err != nil {
		return nil, nil, err
	}
	var contents [][]byte
	left := int64(MaxText)
	for _, path := range paths {
		text, err := disk.Read(path, left)
		if err != nil {
			return nil, nil, fmt.Errorf("data: text: %w", err)
		}
		contents, left = append(contents, text), left-int64(len(text))
	}
	var whole *Text
	if o.Tokenizer != "" {
		whole, err = encodeTexts(contents, paths, window, o)
	} else {
		text := contents[0]
		if len(contents) > 1 {
			text = bytes.Join(contents, nil)
		}
		whole, err = NewText(text, window)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%w (in %s)", err, path)
	}
	if whole.Len() < 2 {
		return nil, nil, fmt.Errorf("data: text: %s has %s, expected at least %d for a sample to train and one to test: "+
			"a longer text or a shorter window", path, whole.sizeText(), 2*(window+1))
	}
	tested, err := testSamples("text", whole.Len(), o.Holdout)
	if err != nil {
		return nil, nil, err
	}
	cut := (whole.Len() - tested) * (window + 1)
	return whole.part(0, cut), whole.part(cut, whole.size()), nil
}

// encodeTexts makes tokens of texts, each by itself, by the tokenizer that the options name.
func encodeTexts(texts [][]byte, paths []string, window int, o Options) (*Text, error) {
	t, err := tokenizer.Open(o.Tokenizer)
	if err == nil && o.TrainedOn != nil {
		err = o.TrainedOn.checkTokenizer(t.Sum())
	}
	if err != nil {
		return nil, fmt.Errorf("data: text: %s: %w", o.Tokenizer, err)
	}
	tokens := []int32{} // not nil, also without a text
	before, all := 0, 0
	for _, text := range texts {
		all += len(text)
	}
	for i, text := range texts {
		err := t.EncodeParts(text, func(ids []int32, done int) error {
			if tokens = append(tokens, ids...); o.OnText != nil {
				o.OnText(before+done, all)
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("data: text: %s: %w", paths[i], err)
		}
		before += len(text)
	}
	whole, err := NewTokens(tokens, t.Len(), window)
	if err == nil {
		whole.info.Tokenizer = t.Sum()
	}
	return whole, err
}

// textFiles lists the files of a text and of its tokenizer.
func textFiles(path string, o Options) ([]string, error) {
	paths, err := textPaths(path)
	if err != nil || o.Tokenizer == "" {
		return paths, err
	}
	more, err := tokenizer.Files(o.Tokenizer)
	if err != nil {
		return nil, fmt.Errorf("data: text: %w", err)
	}
	return append(paths, more...), nil
}

// textPaths lists a file, or the .txt files of a directory in the order of their names.
func textPaths(path string) ([]string, error) {
	const want = "a file, or a directory of .txt files"
	if path == "" {
		return nil, noPlace("text", want)
	}
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() {
		return []string{path}, nil
	}
	var paths []string
	if err == nil {
		var entries []os.DirEntry // sorted
		entries, err = os.ReadDir(path)
		for _, e := range entries {
			if !e.IsDir() && filepath.Ext(e.Name()) == ".txt" {
				paths = append(paths, filepath.Join(path, e.Name()))
			}
		}
	}
	if err == nil && paths == nil {
		err = fmt.Errorf("no .txt file in %s", path)
	}
	if err != nil {
		return nil, fmt.Errorf("data: text: %w: name %s", err, want)
	}
	return paths, nil
}
