package tokenizer

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"

	"penstock.example/internal/disk"
)

const (
	wholeFile      = "tokenizer.json"
	vocabularyFile = "vocab.json"
	mergesFile     = "merges.txt"
)

// Open reads a tokenizer from path: a tokenizer.json of any name, a vocab.json next to a merges.txt, or a
// directory with such files. For a vocab.json it uses GPT-2's pattern, byte alphabet, and added token
// <|endoftext|> if the vocabulary has it. Errors name the file and the line, token or merge; the error is
// fs.ErrNotExist if a file is missing.
func Open(path string) (*Tokenizer, error) {
	files, err := Files(path)
	if err != nil {
		return nil, err
	}
	var contents [][]byte
	for _, file := range files {
		content, err := disk.Read(file, disk.MaxJSON)
		if err != nil {
			return nil, fmt.Errorf("tokenizer: %w", err)
		}
		contents = append(contents, content)
	}
	var t *Tokenizer
	name := files[0]
	if len(files) == 1 {
		t, err = parse(contents[0])
	} else {
		var vocabulary map[string]int32
		var merges []mergePair
		if err = unmarshal(contents[0], &vocabulary); err == nil {
			name = files[1]
			merges, err = parseMerges(contents[1])
		}
		if err == nil {
			name = files[0] + " and " + mergesFile
			t, err = gpt2(vocabulary, merges)
		}
	}
	if err != nil {
		return nil, disk.Short(fmt.Errorf("tokenizer: %s: %w", name, err))
	}
	return t, nil
}

// Files lists the files that Open reads. It returns an error if one is missing.
func Files(path string) ([]string, error) {
	const want = "want a tokenizer.json, a vocab.json with a merges.txt beside it, or a directory with them"
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w; %s", err, want)
	}
	exists := func(path string) error { _, err := os.Stat(path); return err }
	if !info.IsDir() && filepath.Base(path) != vocabularyFile {
		return []string{path}, nil
	}
	directory := path
	if !info.IsDir() {
		directory = filepath.Dir(path)
	} else if whole := filepath.Join(path, wholeFile); exists(whole) == nil {
		return []string{whole}, nil
	}
	files := []string{filepath.Join(directory, vocabularyFile), filepath.Join(directory, mergesFile)}
	if err := cmp.Or(exists(files[0]), exists(files[1])); err != nil {
		return nil, fmt.Errorf("tokenizer: %w; %s", err, want)
	}
	return files, nil
}
