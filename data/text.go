package data

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"penstock.example/internal/arg"
	"penstock.example/internal/disk"
	"penstock.example/tokenizer"
)

// textSet is a Dataset for language models over bytes or tokens. Sample i has the window+1 tokens from
// i·(window+1) on: all but the last are the input, all but the first the target. No token is in two
// samples.
//
// Tokens in files are read on demand, so a file may be larger than memory. A memory mapping would save
// little, and crash the process if the file were truncated.
type textSet struct {
	info    Info
	source  io.ReaderAt
	what    string // describes the source: "5 bytes"
	width   int    // bytes of a token, little-endian
	length  int    // samples
	prompts bool   // tokens above ignoredBit are Ignored as targets
}

// ignoredBit marks tokens of prompts, and padding.
const ignoredBit = 1 << 31

// NewTokens returns a data set of tokens with window tokens in a sample:
//
//	ids, err := t.Encode(text) // a tokenizer.Tokenizer
//	set, err := data.NewTokens(ids, t.Len(), 128)
//
// It returns an error if window is below 1, or there are too few tokens for a sample.
func NewTokens(tokens []int32, classes, window int) (Dataset, error) {
	content := make([]byte, 4*len(tokens))
	binary.Encode(content, binary.LittleEndian, tokens)
	t, err := newText(content, 4, window, Info{Name: "text", Classes: classes, Source: Int64})
	return t, named("text", err)
}

func newText(content []byte, width, window int, info Info) (*textSet, error) {
	return openTextSet(bytes.NewReader(content), "", len(content)/width, width, window, info)
}

// openTextSet returns the set of a source of tokens. prefix is the path of a file and a colon, or "".
func openTextSet(source io.ReaderAt, prefix string, tokens, width, window int, info Info) (*textSet, error) {
	what := fmt.Sprintf("%s%d tokens", prefix, tokens)
	if width == 1 {
		what = fmt.Sprintf("%d bytes", tokens)
	}
	if err := arg.AtLeast("", "Window", window, 1); err != nil {
		return nil, err
	}
	if tokens <= window {
		return nil, fmt.Errorf("%s; want at least %d for one sample: a longer text or a shorter window", what,
			window+1)
	}
	info.Input = Spec{Int64, []int64{int64(window)}}
	info.Target = info.Input
	return &textSet{info: info, source: source, what: what, width: width, length: tokens / (window + 1)}, nil
}

func (t *textSet) Len() int   { return t.length }
func (t *textSet) Info() Info { return t.info }

func (t *textSet) Fill(batch *Batch, indices []int) error {
	if err := batch.resize(t, indices); err != nil {
		return err
	}
	window := t.info.Input.Size()
	content := make([]byte, (window+1)*t.width)
	for row, index := range indices {
		from := index * (window + 1)
		if n, err := t.source.ReadAt(content, int64(from)*int64(t.width)); n < len(content) {
			return fmt.Errorf("data: %s: %s: from token %d: %w; the file was longer when it was opened",
				t.info.Name, t.what, from, err)
		}
		input, target := batch.Input.Int64[row*window:][:window], batch.Target.Int64[row*window:][:window]
		for i := range window + 1 {
			token := readToken(content[i*t.width:], t.width)
			ignored := t.prompts && token >= ignoredBit
			if ignored {
				token -= ignoredBit
			}
			if token >= int64(t.info.Classes) {
				return fmt.Errorf("data: %s: %s: token %d is %d; want 0 to %d: more classes, or another type",
					t.info.Name, t.what, from+i, token, t.info.Classes-1)
			}
			if i < window {
				input[i] = token
			}
			if ignored {
				token = Ignored
			}
			if i > 0 {
				target[i-1] = token
			}
		}
	}
	return nil
}

func readToken(content []byte, width int) (token int64) {
	for i, b := range content[:width] {
		token |= int64(b) << (8 * i)
	}
	return token
}

// classesIn returns the options' number of classes, after a check of the file's first tokens. If
// the number is 0 it reads all tokens, and returns the greatest plus 1.
func classesIn(file *os.File, width int, o Options) (classes int, err error) {
	most, content := cmp.Or(o.Classes, disk.MaxTokens), make([]byte, 1<<20)
	for at := int64(0); ; at += int64(len(content)) {
		n, err := file.ReadAt(content, at)
		if err != nil && err != io.EOF {
			return 0, err
		}
		if at == 0 {
			if problem := formatProblem(content[:n], o.TokenBytes); problem != "" {
				return 0, fmt.Errorf("%s: it %s", file.Name(), problem)
			}
		}
		for i := 0; i+width <= n; i += width {
			token := readToken(content[i:], width)
			if token >= int64(most) {
				return 0, fmt.Errorf("%s: token %d is %d; want 0 to %d: more classes, or another type",
					file.Name(), (int(at)+i)/width, token, most-1)
			}
			classes = max(classes, int(token)+1)
		}
		if err == io.EOF || o.Classes > 0 {
			return cmp.Or(o.Classes, classes), nil
		}
	}
}

// otherStarts are the first bytes of files of NumPy, zip, gzip, Megatron and llm.c.
var otherStarts = []string{npyMagic, "PK\x03\x04", "\x1f\x8b\x08", "MMIDIDX", "\x88\xd8\x34\x01",
	"\x81\xd9\x34\x01"}

// formatProblem describes why a file that begins with content seems to have no tokens of width
// bytes, or returns "". Width 0 means 2, the default, which is then checked more strictly.
func formatProblem(content []byte, width int) string {
	const tofile = `; want tokens alone, as numpy.array(ids, dtype="<u2").tofile(PATH) writes them, or "<u4"`
	const orUint16 = "; or, if they are uint16, type=uint16"
	start, zeros := content[:min(len(content), 1<<10)], make([]byte, 1<<6)
	begins := func(with string) bool { return bytes.HasPrefix(content, []byte(with)) }
	switch {
	case width != 2 && isWider(content, cmp.Or(width, 2), 8):
		return "seems to have numbers of 8 bytes" + tofile
	case width != 0:
		return ""
	case isWider(content, 2, 4):
		return "seems to have tokens of 4 bytes, as each second number is small; want type=uint32" + orUint16
	case slices.ContainsFunc(otherStarts, begins),
		len(content) > 4*len(start) && bytes.Contains(start, zeros) &&
			!bytes.Contains(content[len(start):], zeros):
		return "seems to begin with the header of another format" + tofile + orUint16
	}
	return ""
}

// isWider reports whether content seems to have numbers of wide bytes each, not of width bytes.
func isWider(content []byte, width, wide int) bool {
	var low, high int64
	for at := 0; at+wide <= len(content); at += wide {
		low = max(low, readToken(content[at:], width))
		high = max(high, readToken(content[at+width:], wide-width))
	}
	return len(content) >= 16*wide && low > 16*high && high < int64(max(1, disk.MaxTokens>>(8*width)))
}

// openTokens opens files of tokens. A single file has the test samples at its end.
func openTokens(paths []string, o Options) (train, test Dataset, err error) {
	width, classes := cmp.Or(o.TokenBytes, 2), 0
	if width != 2 && width != 4 {
		return nil, nil, &ConfigError{Field: "TokenBytes", Value: width,
			Remedy: "want 2 for uint16, or 4 for uint32"}
	}
	var sets []*textSet
	for _, path := range paths {
		set, err := openTokenFile(path, width, o)
		if err != nil {
			return nil, nil, err
		}
		sets, classes = append(sets, set), max(classes, set.info.Classes)
	}
	for _, t := range sets {
		t.info.Classes = classes
	}
	return trainAndTest(o, sets)
}

func openTokenFile(path string, width int, o Options) (*textSet, error) {
	file, err := disk.Open(path)
	if err != nil {
		return nil, err
	}
	size, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	if size%int64(width) != 0 {
		return nil, fmt.Errorf("%s: %d bytes are no whole number of tokens of %d bytes; want uint%d, "+
			"little-endian, as numpy's tofile writes it: the file is cut short, or the type differs",
			path, size, width, 8*width)
	}
	classes, err := classesIn(file, width, o)
	if err != nil {
		return nil, err
	}
	return openTextSet(file, path+": ", int(size)/width, width, o.Window, Info{Name: "tokens",
		Classes: classes, Source: Int64})
}

// openText reads texts. The last samples are for testing.
func openText(paths []string, o Options) (train, test Dataset, err error) {
	var texts [][]byte
	left := int64(disk.MaxText) // held in memory
	for _, path := range paths {
		text, err := disk.Read(path, left)
		if err != nil {
			return nil, nil, err
		}
		texts, left = append(texts, text), left-int64(len(text))
	}
	var whole *textSet
	if o.Tokenizer != "" {
		whole, err = encodeTexts(texts, paths, o)
	} else {
		for _, text := range texts[1:] {
			texts[0] = append(texts[0], text...)
		}
		whole, err = newText(texts[0], 1, o.Window, Info{Name: "text", Classes: 256, Source: Uint8})
	}
	if err == nil {
		train, test, err = trainAndTest(o, []*textSet{whole})
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%w (in %s)", err, paths[0])
	}
	return train, test, nil
}

// openTokenizer opens the options' tokenizer, which must be the one that a model was trained with.
func (o Options) openTokenizer() (*tokenizer.Tokenizer, error) {
	t, err := tokenizer.Open(o.Tokenizer)
	if err == nil && o.TrainedOn != nil {
		err = o.TrainedOn.checkTokenizer(t.Sum())
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.Tokenizer, err)
	}
	return t, nil
}

// encodeTexts encodes each text by itself and puts the tokenizer's template around it.
func encodeTexts(texts [][]byte, paths []string, o Options) (*textSet, error) {
	t, err := o.openTokenizer()
	if err != nil {
		return nil, err
	}
	var content []byte
	before, total := 0, 0
	for _, text := range texts {
		total += len(text)
	}
	begin, end := t.Template()
	for i, text := range texts {
		content = appendTokens(content, begin)
		err := t.EncodeParts(text, func(ids []int32, done int) error {
			content = appendTokens(content, ids)
			if o.OnText != nil {
				o.OnText(before+done, total)
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", paths[i], err)
		}
		content = appendTokens(content, end)
		before += len(text)
	}
	return newText(content, 4, o.Window,
		Info{Name: "text", Classes: t.Len(), Source: Int64, Tokenizer: t.Sum(), Begin: begin})
}

func appendTokens(to []byte, ids []int32) []byte {
	to, _ = binary.Append(to, binary.LittleEndian, ids) // cannot fail
	return to
}

// textFiles lists the .txt files of a directory.
func textFiles(directory string) ([]string, error) {
	paths, err := visible(directory, func(f os.FileInfo) bool {
		return !f.IsDir() && filepath.Ext(f.Name()) == ".txt"
	})
	if err == nil && paths == nil {
		err = fmt.Errorf("no .txt file in %s", directory)
	}
	return paths, err
}

// Ignored is the target of a token without a loss: of a prompt's tokens, and of padding.
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

// openJSONL reads lines of {"text": ...}, or of {"prompt": ..., "completion": ...}.
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
	lines, err := disk.Read(path, disk.MaxText)
	if err != nil {
		return nil, err
	}
	begin, end := t.Template()
	if name := o.JSONL.Begin; name == "none" {
		begin = nil
	} else if name != "" {
		begin, err = firstToken(t, name)
	}
	ends := []string{"<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "</s>"}
	if o.JSONL.End != "" {
		ends, end = []string{o.JSONL.End}, nil
	}
	if end == nil && err == nil {
		end, err = firstToken(t, ends...)
	}
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
		text, unlabelled, err := encodeLine(line, t)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		tokens := slices.Concat(begin, text, end)
		length := len(tokens)
		if o.JSONL.Apart {
			length = o.Window + 1
		}
		for i := range length {
			token := uint32(ignoredBit) // padding
			if i < len(tokens) && i < len(begin)+unlabelled {
				token |= uint32(tokens[i])
			} else if i < len(tokens) {
				token, trained = uint32(tokens[i]), true
			}
			content = binary.LittleEndian.AppendUint32(content, token)
		}
	}
	set, err := newText(content, 4, o.Window, Info{Name: "jsonl", Classes: t.Len(), Source: Int64,
		Tokenizer: t.Sum(), Begin: begin})
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

// encodeLine returns the tokens of a line, and how many of them only repeat the prompt and get no
// label. A prompt is encoded with its completion, as the model reads both: tokens may span the
// boundary.
func encodeLine(content []byte, t *tokenizer.Tokenizer) (tokens []int32, unlabelled int, err error) {
	var line struct{ Text, Prompt, Completion *string }
	if err := json.Unmarshal(content, &line); err != nil {
		return nil, 0, err
	}
	if line.Text != nil && line.Prompt == nil && line.Completion == nil {
		line.Prompt, line.Completion, line.Text = new(""), line.Text, nil
	}
	if line.Text != nil || line.Prompt == nil || line.Completion == nil {
		return nil, 0, errors.New(`want {"text": "..."}, or {"prompt": "...", "completion": "..."}`)
	}
	prompt, err := t.Encode([]byte(*line.Prompt))
	if err == nil {
		tokens, err = t.Encode([]byte(*line.Prompt + *line.Completion))
	}
	for unlabelled < min(len(prompt), len(tokens)) && prompt[unlabelled] == tokens[unlabelled] {
		unlabelled++
	}
	return tokens, unlabelled, err
}

// firstToken returns the first of the texts that is one token.
func firstToken(t *tokenizer.Tokenizer, texts ...string) ([]int32, error) {
	for _, text := range texts {
		if ids, err := t.Encode([]byte(text)); err == nil && len(ids) == 1 {
			return ids, nil
		}
	}
	return nil, fmt.Errorf("%q is no token; want a text that the tokenizer has as one", texts)
}
