package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sort"

	"penstock.example/internal/disk"
)

// File is an open file: an index in memory and tensors read when asked for. Its methods may be called
// concurrently.
type File struct {
	path     string
	source   io.ReaderAt
	closer   io.Closer // nil if the file is not ours to close
	data     int64     // where the data starts in the file
	spans    []span    // sorted by name
	metadata map[string]string
}

// Open reads the header of the regular file at path and checks that the tensors it names fill the file
// exactly. The caller closes the File.
func Open(path string) (*File, error) {
	source, err := disk.Open(path)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	info, err := source.Stat()
	var file *File
	if err == nil {
		file, err = NewFile(source, info.Size())
	}
	if err != nil {
		source.Close() // it was only read
		if format := (*FormatError)(nil); errors.As(err, &format) {
			format.Path = path
		}
		return nil, err
	}
	file.path, file.closer = path, source
	return file, nil
}

// NewFile is Open for a file of size bytes that is reached through source. Close does not close source.
func NewFile(source io.ReaderAt, size int64) (*File, error) {
	header, err := readHeader(source, size)
	if err != nil {
		return nil, err
	}
	spans, metadata, err := parseHeader(header)
	if err != nil {
		return nil, err
	}
	file := &File{source: source, data: lengthSize + int64(len(header)), spans: spans, metadata: metadata}
	if err := checkTiling(spans, file.data, size-file.data); err != nil {
		return nil, err
	}
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.Name, b.Name) })
	return file, nil
}

// readHeader reads the header without its length. Nothing is allocated that the file has no bytes for.
func readHeader(source io.ReaderAt, size int64) ([]byte, error) {
	fail := func(problem string, args ...any) ([]byte, error) {
		return nil, &FormatError{Problem: fmt.Sprintf(problem, args...)}
	}
	if size < lengthSize {
		return fail("the file has %d bytes, expected at least the %d of the header's length", size, lengthSize)
	}
	var prefix [lengthSize]byte
	if err := readAt(source, prefix[:], 0); err != nil {
		return nil, fmt.Errorf("safetensors: reading the header's length: %w", err)
	}
	length, left := binary.LittleEndian.Uint64(prefix[:]), uint64(size-lengthSize)
	// A file of torch.save is a zip, or before 1.6 a pickle of version 2 to 5.
	zip, pickle := bytes.HasPrefix(prefix[:], []byte("PK\x03\x04")), prefix[0] == 0x80 && prefix[1] >= 2 && prefix[1] <= 5
	switch {
	case length > min(MaxHeader, left) && (zip || pickle):
		return fail("it is a file of PyTorch; want the state_dict that it holds, as safetensors.torch.save_file(state, FILE) writes it")
	case length > MaxHeader:
		return fail("the header's length is %d (bytes % x), expected at most %d: this may be another kind of file",
			length, prefix, MaxHeader)
	case length > left:
		return fail("the header's length is %d, the file has %d bytes left: it is truncated, or another kind of file",
			length, left)
	}
	header := make([]byte, length)
	if err := readAt(source, header, lengthSize); err != nil {
		return nil, fmt.Errorf("safetensors: reading the header: %w", err)
	}
	return header, nil
}

// checkTiling returns an error unless the spans cover the data, size bytes from start, each byte once.
func checkTiling(spans []span, start, size int64) error {
	spans = slices.Clone(spans)
	slices.SortFunc(spans, func(a, b span) int {
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end), cmp.Compare(a.Name, b.Name))
	})
	covered, last := int64(0), "the data's start"
	for _, s := range spans {
		fail := func(format string, args ...any) error {
			return &FormatError{Tensor: s.Name, Offset: start + min(s.begin, size),
				Problem: fmt.Sprintf(format, args...)}
		}
		switch {
		case s.begin < covered:
			return fail("data_offsets [%d %d] overlap %s, expected begin %d", s.begin, s.end, last, covered)
		case s.begin > covered:
			return fail("data_offsets [%d %d] leave a gap of %d bytes after %s, expected begin %d",
				s.begin, s.end, s.begin-covered, last, covered)
		case s.end > size:
			return fail("data_offsets [%d %d] end beyond the %d bytes of data in the file: it is truncated",
				s.begin, s.end, size)
		}
		covered, last = s.end, fmt.Sprintf("tensor %q", s.Name)
	}
	if covered < size {
		return &FormatError{Offset: start + covered,
			Problem: fmt.Sprintf("%d bytes follow %s, expected the end of the file", size-covered, last)}
	}
	return nil
}

// Tensors returns the tensors in the order of their names, without data.
func (f *File) Tensors() []Tensor {
	tensors := make([]Tensor, len(f.spans))
	for i, s := range f.spans {
		tensors[i] = s.Tensor
		tensors[i].Shape = slices.Clone(s.Shape)
	}
	return tensors
}

// Metadata returns a copy of the file's metadata, nil if it has none.
func (f *File) Metadata() map[string]string { return maps.Clone(f.metadata) }

// Read reads one tensor, with its data in a slice of its own. It returns an error if there is no tensor
// of this name or the data cannot be read.
func (f *File) Read(name string) (Tensor, error) {
	i, found := sort.Find(len(f.spans), func(i int) int { return cmp.Compare(name, f.spans[i].Name) })
	if !found {
		return Tensor{}, fmt.Errorf("safetensors: %s: no tensor %q among %d", f.path, name, len(f.spans))
	}
	s := f.spans[i]
	data := make([]byte, s.end-s.begin)
	if err := readAt(f.source, data, f.data+s.begin); err != nil {
		return Tensor{}, fmt.Errorf("safetensors: %s: tensor %q: reading bytes %d to %d: %w",
			f.path, name, f.data+s.begin, f.data+s.end, err)
	}
	if err := s.checkData(data); err != nil {
		return Tensor{}, &FormatError{Path: f.path, Tensor: name, Offset: f.data + s.begin,
			Problem: err.Error()}
	}
	t := s.Tensor
	t.Shape, t.Data = slices.Clone(s.Shape), data
	return t, nil
}

// Close closes the file that Open opened. Tensors already read stay valid; Read fails afterwards.
func (f *File) Close() error {
	if f.closer == nil {
		return nil
	}
	return f.closer.Close()
}

// readAt fills buffer from offset. A source that ends early has shrunk since its size was taken.
func readAt(source io.ReaderAt, buffer []byte, offset int64) error {
	n, err := source.ReadAt(buffer, offset)
	if n == len(buffer) {
		return nil
	}
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// FormatError is a file that is not what the format demands. Other failures of reading, such as a
// disk's, are returned as they come.
type FormatError struct {
	Path    string // the file's, if it was opened by one
	Tensor  string // the tensor concerned, if one is
	Offset  int64  // the place in the file, in bytes from its start
	Problem string // what was found and what was expected
}

func (e *FormatError) Error() string {
	where := fmt.Sprintf("byte %d: ", e.Offset)
	if e.Path != "" {
		where = e.Path + ": " + where
	}
	if e.Tensor != "" {
		where += fmt.Sprintf("tensor %q: ", e.Tensor)
	}
	return "safetensors: " + where + e.Problem
}
