package data

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
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
	info          Info
	source        textSource
	first, length int // samples of the source
}

// textSource has the bytes or tokens of a text.
type textSource interface {
	// read reads tokens from one on.
	read(to []int64, from int) error
	// String says how many there are.
	String() string
}

// NewText returns a data set of the content, which it keeps. It returns an error if window is below
// one or the content is shorter than one sample.
func NewText(content []byte, window int) (*Text, error) {
	return newText(heldText[byte]{content, "bytes"}, len(content), window,
		Info{Name: "text", Classes: 256, Source: Uint8})
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
	return newText(heldText[int32]{tokens, "tokens"}, len(tokens), window,
		Info{Name: "text", Classes: classes, Source: Int64})
}

// newText is the set of a source of size bytes or tokens.
func newText(source textSource, size, window int, info Info) (*Text, error) {
	if err := arg.AtLeast("data: "+info.Name, "Window", window, 1); err != nil {
		return nil, err
	}
	if size <= window {
		return nil, fmt.Errorf("data: %s: %s; want at least %d for one sample: a longer text or a shorter window",
			info.Name, source, window+1)
	}
	info.Input = Spec{Int64, []int64{int64(window)}}
	info.Target = info.Input
	return &Text{info: info, source: source, length: size / (window + 1)}, nil
}

// split holds the last samples out for testing.
func (t *Text) split(o Options) (train, test Dataset, err error) {
	tested, err := testSamples(t.info.Name, t.length, o.Holdout)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %s, in samples of %d", err, t.source, t.info.Input.Size()+1)
	}
	training, testing := *t, *t
	training.length -= tested
	testing.first, testing.length = training.length, tested
	return &training, &testing, nil
}

// Len implements Dataset.
func (t *Text) Len() int { return t.length }

// Info implements Dataset.
func (t *Text) Info() Info { return t.info }

// Fill implements Dataset.
func (t *Text) Fill(batch *Batch, indices []int) error {
	if err := batch.resize(t, indices); err != nil {
		return err
	}
	window := t.info.Input.Size()
	sample := make([]int64, window+1)
	for row, index := range indices {
		from := (t.first + index) * (window + 1)
		if err := t.source.read(sample, from); err != nil {
			return err
		}
		for i, token := range sample {
			if token >= int64(t.info.Classes) {
				return fmt.Errorf("data: %s: %s: token %d is %d; want 0 to %d: more classes, or another type",
					t.info.Name, t.source, from+i, token, t.info.Classes-1)
			}
		}
		copy(batch.Input.Int64[row*window:][:window], sample)
		copy(batch.Target.Int64[row*window:][:window], sample[1:])
	}
	return nil
}

// heldText is a text in memory.
type heldText[T byte | int32] struct {
	all  []T
	unit string
}

func (h heldText[T]) String() string { return fmt.Sprintf("%d %s", len(h.all), h.unit) }
func (h heldText[T]) read(to []int64, from int) error {
	for i := range to {
		to[i] = int64(h.all[from+i])
	}
	return nil
}

// tokenFile is a file of tokens. It reads them when they are asked for, so that a file may be larger than
// memory. A mapping would save little, and end the process where somebody truncates the file.
type tokenFile struct {
	file  *os.File
	width int // bytes of a token
	size  int // tokens
}

func (f *tokenFile) String() string { return fmt.Sprintf("%s: %d tokens", f.file.Name(), f.size) }

func (f *tokenFile) read(to []int64, from int) error {
	content := make([]byte, len(to)*f.width)
	if n, err := f.file.ReadAt(content, int64(from)*int64(f.width)); n < len(content) {
		return fmt.Errorf("data: tokens: %s: tokens %d to %d: %w; the file was longer when it was opened",
			f.file.Name(), from, from+len(to)-1, err)
	}
	for i := range to {
		to[i] = f.number(content[i*f.width:])
	}
	return nil
}

func (f *tokenFile) number(bytes []byte) int64 {
	if f.width == 2 {
		return int64(binary.LittleEndian.Uint16(bytes))
	}
	return int64(binary.LittleEndian.Uint32(bytes))
}

// classes reads all tokens and returns one more than the greatest.
func (f *tokenFile) classes() (int, error) {
	const most = 1 << 20
	r := bufio.NewReaderSize(io.NewSectionReader(f.file, 0, 1<<62), 1<<20)
	greatest, token := int64(0), make([]byte, f.width)
	for at := range f.size {
		if _, err := io.ReadFull(r, token); err != nil {
			return 0, err
		}
		if greatest = max(greatest, f.number(token)); greatest >= most {
			return 0, fmt.Errorf("data: tokens: %s: token %d is %d; want below %d: type is another, or this is no file of tokens",
				f.file.Name(), at, greatest, most)
		}
	}
	return int(greatest) + 1, nil
}

func openTokenFile(path string, width int) (*tokenFile, error) {
	file, err := disk.Open(path)
	if err != nil {
		return nil, fmt.Errorf("data: tokens: %w", err)
	}
	stat, err := file.Stat()
	if err == nil && stat.Size()%int64(width) != 0 {
		err = fmt.Errorf("data: tokens: %s: %d bytes are no whole number of tokens of %d bytes; want uint%d, little-endian, as numpy's tofile writes it: the file is cut short, or type is another",
			path, stat.Size(), width, 8*width)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &tokenFile{file, width, int(stat.Size()) / width}, nil
}

// openTokens opens the files at path. Without one to test with, the last samples are for testing.
func openTokens(path string, o Options) (train, test Dataset, err error) {
	width, classes := o.TokenBytes, o.Classes
	if width == 0 {
		width = 2
	}
	if width != 2 && width != 4 {
		return nil, nil, &ConfigError{Of: "data: tokens", Field: "TokenBytes", Value: width,
			Remedy: "want 2 for uint16, or 4 for uint32"}
	}
	paths, err := partFiles("tokens", "bin")(path, o)
	if err != nil {
		return nil, nil, err
	}
	var sets []*Text
	for _, path := range paths {
		file, err := openTokenFile(path, width)
		if err != nil {
			return nil, nil, err
		}
		set, err := newText(file, file.size, o.window(), Info{Name: "tokens", Source: Int64})
		if err != nil {
			return nil, nil, err
		}
		if o.Classes == 0 {
			n, err := file.classes()
			if err != nil {
				return nil, nil, err
			}
			classes = max(classes, n)
		}
		sets = append(sets, set)
	}
	if t := o.TrainedOn; t != nil && o.Classes == 0 {
		classes = max(classes, t.Classes)
	}
	for _, t := range sets {
		t.info.Classes = classes
	}
	if len(sets) == 1 {
		return sets[0].split(o)
	}
	return trainAndTest(o, "tokens", sets)
}

// openText reads the text at path and splits off its last samples for testing: the share o.Holdout,
// at least one.
func openText(path string, o Options) (train, test Dataset, err error) {
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
	switch {
	case o.Tokenizer != "":
		whole, err = encodeTexts(contents, paths, o)
	case len(contents) == 1:
		whole, err = NewText(contents[0], o.window())
	default:
		whole, err = NewText(bytes.Join(contents, nil), o.window())
	}
	if err == nil {
		train, test, err = whole.split(o)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%w (in %s)", err, path)
	}
	return train, test, nil
}

func (o Options) window() int {
	if o.Window == 0 {
		return defaultWindow
	}
	return o.Window
}

// encodeTexts makes tokens of texts, each by itself, by the tokenizer that the options name.
func encodeTexts(texts [][]byte, paths []string, o Options) (*Text, error) {
	t, err := tokenizer.Open(o.Tokenizer)
	if err == nil && o.TrainedOn != nil {
		err = o.TrainedOn.checkTokenizer(t.Sum())
	}
	if err != nil {
		return nil, fmt.Errorf("data: text: %s: %w", o.Tokenizer, err)
	}
	var tokens []int32
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
	whole, err := NewTokens(tokens, t.Len(), o.window())
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
	if err != nil {
		return nil, fmt.Errorf("data: text: %w: name %s", err, want)
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	names, err := visible("text", path, func(f os.FileInfo) bool {
		return !f.IsDir() && filepath.Ext(f.Name()) == ".txt"
	})
	if err == nil && names == nil {
		err = fmt.Errorf("data: text: no .txt file in %s: name %s", path, want)
	}
	var paths []string
	for _, name := range names {
		paths = append(paths, filepath.Join(path, name))
	}
	return paths, err
}
