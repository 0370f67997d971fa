package data

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"penstock/internal/arg"
	"penstock/internal/disk"
)

// MaxText is the most bytes of text that Open reads, of all files together: they are held in
// memory.
const MaxText = 4 << 30

// What Open takes for Options that are zero.
const (
	defaultWindow  = 128
	defaultHoldout = 0.1
)

// Text is a Dataset for language models over bytes: 256 classes, Int64 inputs and targets of window
// bytes each. Sample i is the window+1 bytes from i·(window+1) on, so that no byte is in two
// samples; its input is all of them but the last and its target all but the first. Bytes after the
// last whole sample are left out.
type Text struct {
	info    Info
	content []byte
	window  int
}

// NewText returns a data set of the content, which it keeps. It returns an error if window is below
// one or the content is shorter than one sample.
func NewText(content []byte, window int) (*Text, error) {
	if window < 1 {
		return nil, arg.AtLeast("data: text", "Window", window, 1)
	}
	if len(content) <= window {
		return nil, fmt.Errorf("data: text: %d bytes, expected at least %d for one sample: a longer text or a shorter window",
			len(content), int64(window)+1)
	}
	spec := Spec{Int64, []int64{int64(window)}}
	return &Text{Info{Name: "text", Classes: 256, Input: spec, Target: spec}, content, window}, nil
}

// Len implements Dataset.
func (t *Text) Len() int { return len(t.content) / (t.window + 1) }

// Info implements Dataset.
func (t *Text) Info() Info { return t.info }

// Fill implements Dataset.
func (t *Text) Fill(batch *Batch, indices []int) error {
	if err := batch.begin(t, indices); err != nil {
		return err
	}
	for row, index := range indices {
		sample := t.content[index*(t.window+1):][:t.window+1]
		input, target := batch.Input.Int64[row*t.window:][:t.window], batch.Target.Int64[row*t.window:][:t.window]
		for i := range t.window {
			input[i], target[i] = int64(sample[i]), int64(sample[i+1])
		}
	}
	return nil
}

// openText reads the text at path and splits off its last samples for testing: the share o.Holdout,
// at least one.
func openText(path string, o Options) (train, test Dataset, err error) {
	window := o.Window
	if window == 0 {
		window = defaultWindow
	}
	paths, err := textFiles(path)
	if err != nil {
		return nil, nil, err
	}
	content, err := readText(paths)
	if err != nil {
		return nil, nil, err
	}
	whole, err := NewText(content, window)
	if err != nil {
		return nil, nil, fmt.Errorf("%w (in %s)", err, path)
	}
	if whole.Len() < 2 {
		return nil, nil, fmt.Errorf("data: text: %s has %d bytes, expected at least %d for a sample to train and one to test: "+
			"a longer text or a shorter window", path, len(content), 2*(window+1))
	}
	tested, err := heldOut("text", whole.Len(), o.Holdout)
	if err != nil {
		return nil, nil, err
	}
	cut := (whole.Len() - tested) * (window + 1)
	training, testing := *whole, *whole
	training.content, testing.content = content[:cut], content[cut:]
	return &training, &testing, nil
}

// textFiles lists a file, or the .txt files of a directory in the order of their names.
func textFiles(path string) ([]string, error) {
	if path == "" {
		return nil, errors.New("data: text has no usual place: name a file, or a directory of .txt files, with --data-dir")
	}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("data: text: %w: name a file, or a directory of .txt files, with --data-dir", err)
	}
	if err != nil {
		return nil, fmt.Errorf("data: text: %w", err)
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path) // sorted
	if err != nil {
		return nil, fmt.Errorf("data: text: %w", err)
	}
	var paths []string
	for _, entry := range entries {
		if !entry.IsDir() && filepath.Ext(entry.Name()) == ".txt" {
			paths = append(paths, filepath.Join(path, entry.Name()))
		}
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("data: text: no .txt file in %s: name a file, or a directory of .txt files, with --data-dir", path)
	}
	return paths, nil
}

// readText reads files one after the other.
func readText(paths []string) ([]byte, error) {
	var texts [][]byte
	left := int64(MaxText)
	for _, path := range paths {
		text, err := disk.Read(path, left)
		if err != nil {
			return nil, fmt.Errorf("data: text: %w", err)
		}
		texts, left = append(texts, text), left-int64(len(text))
	}
	if len(texts) == 1 {
		return texts[0], nil
	}
	return bytes.Join(texts, nil), nil
}
