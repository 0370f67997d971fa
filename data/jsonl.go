package data

import (
	"bytes"
	"encoding/binary"
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
	// Begin and End are put around each text, such as "<|endoftext|>". They must be a token. An empty End
	// is the first of <|endoftext|>, <|end_of_text|>, <|im_end|>, </s> that the tokenizer has.
	Begin, End string
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
	var sets []*textSet
	for _, path := range paths {
		s, err := readJSONL(path, t, o)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", path, err)
		}
		sets = append(sets, s)
	}
	return trainAndTest(o, sets)
}

func readJSONL(path string, t *tokenizer.Tokenizer, o Options) (*textSet, error) {
	lines, err := disk.Read(path, MaxText)
	if err != nil {
		return nil, err
	}
	begin, err := specialToken(t, o.JSONL.Begin)
	if err != nil {
		return nil, err
	}
	end, err := endToken(t, o.JSONL.End)
	if err != nil {
		return nil, err
	}
	var content []byte
	number, trained := 0, false
	for line := range bytes.Lines(lines) {
		number++
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		prompt, text, err := encodeLine(line, t)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		tokens, ignored := slices.Concat(begin, prompt, text, end), len(begin)+len(prompt)
		length := len(tokens)
		if o.JSONL.Apart {
			length = o.Window + 1
		}
		for i := range length {
			token := uint32(ignoredBit) // padding
			if i < len(tokens) && i < ignored {
				token |= uint32(tokens[i])
			} else if i < len(tokens) {
				token, trained = uint32(tokens[i]), true
			}
			content = binary.LittleEndian.AppendUint32(content, token)
		}
	}
	set, err := newText(content, 4, o.Window, Info{Name: "jsonl", Classes: t.Len(), Source: Int64,
		Tokenizer: t.Sum()})
	if err == nil && !trained {
		err = fmt.Errorf("no token of a completion is within the %d tokens of a sample; want a longer window",
			o.Window+1)
	}
	if err != nil {
		return nil, err
	}
	set.prompts = true
	return set, nil
}

// encodeLine returns the tokens of a line's prompt, if it has one, and of its text or completion.
func encodeLine(content []byte, t *tokenizer.Tokenizer) (prompt, text []int32, err error) {
	var line struct{ Text, Prompt, Completion *string }
	if err := json.Unmarshal(content, &line); err != nil {
		return nil, nil, err
	}
	if line.Text != nil && line.Prompt == nil && line.Completion == nil {
		line.Prompt, line.Completion, line.Text = new(""), line.Text, nil
	}
	if line.Text != nil || line.Prompt == nil || line.Completion == nil {
		return nil, nil, errors.New(`want {"text": "..."}, or {"prompt": "...", "completion": "..."}`)
	}
	if prompt, err = t.Encode([]byte(*line.Prompt)); err == nil {
		text, err = t.Encode([]byte(*line.Completion))
	}
	return prompt, text, err
}

// specialToken returns the token that text is, or none for "".
func specialToken(t *tokenizer.Tokenizer, text string) ([]int32, error) {
	if text == "" {
		return nil, nil
	}
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
