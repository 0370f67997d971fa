package data

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"penstock.example/internal/arg"
	"penstock.example/internal/disk"
)

// tokens is a Dataset for language models over a file of tokens, cut as Text cuts bytes. It reads
// the tokens of a sample when they are asked for, so that a file may be larger than memory; the
// system keeps in memory what it has memory for. A mapping would save a copy of a few hundred bytes,
// and end the process where somebody truncates the file.
type tokens struct {
	info   Info
	file   *os.File
	path   string
	first  int64 // the token that the first sample begins with
	length int   // samples
	width  int   // bytes of a token
}

// openTokens opens the files at path. Without one to test with, the last samples are for testing.
func openTokens(path string, o Options) (train, test Dataset, err error) {
	window, width := o.Window, o.TokenBytes
	if window == 0 {
		window = defaultWindow
	}
	if width == 0 {
		width = 2
	}
	if err := arg.AtLeast("data: tokens", "Window", window, 1); err != nil {
		return nil, nil, err
	}
	if err := arg.AtLeast("data: tokens", "Classes", o.Classes, 0); err != nil {
		return nil, nil, err
	}
	if width != 2 && width != 4 {
		return nil, nil, &ConfigError{Of: "data: tokens", Field: "TokenBytes", Value: width,
			Remedy: "want 2 for uint16, or 4 for uint32"}
	}
	paths, err := partFiles("tokens", "bin")(path, o)
	if err != nil {
		return nil, nil, err
	}
	spec := Spec{Int64, []int64{int64(window)}}
	info := Info{Name: "tokens", Classes: o.Classes, Input: spec, Target: spec, Source: Int64}
	var sets []*tokens
	for _, path := range paths {
		t, err := openTokenFile(path, info, width)
		if err != nil {
			return nil, nil, fmt.Errorf("data: tokens: %w", err)
		}
		sets = append(sets, t)
	}
	if o.Classes == 0 {
		if o.TrainedOn != nil {
			o.Classes = o.TrainedOn.Classes
		}
		for _, t := range sets {
			n, err := t.classes()
			if err != nil {
				return nil, nil, fmt.Errorf("data: tokens: %s: %w", t.path, err)
			}
			o.Classes = max(o.Classes, n)
		}
	}
	for _, t := range sets {
		t.info.Classes = o.Classes
	}
	if len(sets) == 2 {
		return trainAndTest(o, "tokens", sets)
	}
	tested, err := testSamples("tokens", sets[0].length, o.Holdout)
	if err != nil {
		return nil, nil, fmt.Errorf("%w (in %s, of %d tokens each)", err, path, window+1)
	}
	training, testing := *sets[0], *sets[0]
	training.length -= tested
	testing.first, testing.length = int64(training.length)*int64(window+1), tested
	return &training, &testing, nil
}

func openTokenFile(path string, info Info, width int) (*tokens, error) {
	file, err := disk.Open(path)
	if err != nil {
		return nil, err
	}
	size := int64(0)
	stat, err := file.Stat()
	if err == nil {
		size = stat.Size()
		window := info.Input.Size()
		switch {
		case size%int64(width) != 0:
			err = fmt.Errorf("%s: %d bytes are no whole number of tokens of %d bytes; want uint%d, little-endian, as numpy's tofile writes it: the file is cut short, or type is another",
				path, size, width, 8*width)
		case size/int64(width) <= int64(window):
			err = fmt.Errorf("%s: %d tokens; want at least %d for one sample: more tokens or a shorter window", path, size/int64(width), window+1)
		}
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	length := size / int64(width) / int64(info.Input.Size()+1)
	return &tokens{info: info, file: file, path: path, length: int(length), width: width}, nil
}

// classes reads all tokens and returns one more than the greatest.
func (t *tokens) classes() (int, error) {
	const most = 1 << 20
	r := bufio.NewReaderSize(io.NewSectionReader(t.file, 0, 1<<62), 1<<20)
	greatest, token := 0, make([]byte, t.width)
	for at := int64(0); ; at++ {
		if _, err := io.ReadFull(r, token); err == io.EOF {
			break
		} else if err != nil {
			return 0, err
		}
		n := t.number(token)
		if n >= most {
			return 0, fmt.Errorf("token %d is %d; want below %d: type is another, or this is no file of tokens", at, n, most)
		}
		greatest = max(greatest, int(n))
	}
	return greatest + 1, nil
}

func (t *tokens) number(bytes []byte) int64 {
	if t.width == 2 {
		return int64(binary.LittleEndian.Uint16(bytes))
	}
	return int64(binary.LittleEndian.Uint32(bytes))
}

func (t *tokens) Len() int   { return t.length }
func (t *tokens) Info() Info { return t.info }

func (t *tokens) Fill(batch *Batch, indices []int) error {
	if err := batch.resize(t, indices); err != nil {
		return err
	}
	window := t.info.Input.Size()
	sample := make([]byte, (window+1)*t.width)
	for row, index := range indices {
		at := t.first + int64(index)*int64(window+1)
		if n, err := t.file.ReadAt(sample, at*int64(t.width)); n < len(sample) {
			return fmt.Errorf("data: tokens: %s: tokens %d to %d: %w; the file was longer when it was opened", t.path, at, at+int64(window), err)
		}
		input, target := batch.Input.Int64[row*window:][:window], batch.Target.Int64[row*window:][:window]
		for i := range window + 1 {
			token := t.number(sample[i*t.width:])
			if token >= int64(t.info.Classes) {
				return fmt.Errorf("data: tokens: %s: token %d is %d; want 0 to %d: more classes, or another type", t.path, at+int64(i), token, t.info.Classes-1)
			}
			if i < window {
				input[i] = token
			}
			if i > 0 {
				target[i-1] = token
			}
		}
	}
	return nil
}
