package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"unicode/utf8"

	"penstock.example/internal/disk"
)

// Write writes a file of the tensors and the metadata to w. The bytes do not depend on the order of either:
//
//   - the header has __metadata__ first if there is any, its keys sorted, then the tensors sorted by name; it is padded
//     with spaces so that the data starts at a multiple of 8;
//   - the data has the widest dtypes first and is sorted by name within a width, so that every tensor is aligned to its
//     own elements and a reader may use it in place.
//
// Names, dtypes, shapes and the sizes of Data are checked before anything is written; what a Load
// returns is checked when its turn comes, and an error then, or one from w, leaves w with a part of a
// file. WriteFile does not.
func Write(w io.Writer, tensors []Tensor, metadata map[string]string) error {
	if err := write(w, tensors, metadata); err != nil {
		return fmt.Errorf("safetensors: %w", err)
	}
	return nil
}

func write(w io.Writer, tensors []Tensor, metadata map[string]string) error {
	tensors = slices.Clone(tensors)
	slices.SortFunc(tensors, func(a, b Tensor) int {
		return cmp.Or(cmp.Compare(b.DType.Size(), a.DType.Size()), cmp.Compare(a.Name, b.Name))
	})
	head, err := header(tensors, metadata)
	if err != nil {
		return err
	}
	if _, err := w.Write(head); err != nil {
		return fmt.Errorf("writing the header: %w", err)
	}
	for _, t := range tensors {
		if err := writeData(w, t); err != nil {
			return fmt.Errorf("tensor %q: %w", t.Name, err)
		}
	}
	return nil
}

func writeData(w io.Writer, t Tensor) error {
	if t.Load == nil {
		_, err := w.Write(t.Data)
		return err
	}
	size, err := t.Size()
	if err != nil {
		return err
	}
	written := int64(0)
	var failed error // of a piece, whatever Load makes of it
	err = t.Load(func(piece []byte) error {
		if written += int64(len(piece)); written > size {
			failed = fmt.Errorf("shape %v of %s takes %d bytes, the data has %d and more", t.Shape, t.DType,
				size, written)
		} else if failed = t.checkElements(piece, written-int64(len(piece))); failed == nil { // a BOOL is a byte
			_, failed = w.Write(piece)
		}
		return failed
	})
	switch {
	case failed != nil:
		return failed
	case err != nil:
		return fmt.Errorf("loading its data: %w", err)
	case written < size:
		return fmt.Errorf("shape %v of %s takes %d bytes, the data has %d", t.Shape, t.DType, size, written)
	}
	return nil
}

// entry is a tensor's value in the header; the order of its fields is the order in the file.
type entry struct {
	DType   DType    `json:"dtype"`
	Shape   []int64  `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
}

// header returns the length, the header and its padding for tensors whose data follows in the order given.
func header(tensors []Tensor, metadata map[string]string) ([]byte, error) {
	entries := make(map[string]entry, len(tensors))
	end := int64(0)
	for _, t := range tensors {
		if err := checkName(t.Name); err != nil {
			return nil, err
		}
		if _, twice := entries[t.Name]; twice {
			return nil, fmt.Errorf("two tensors are named %q", t.Name)
		}
		size, err := checkTensor(t)
		if err != nil {
			return nil, fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		start := end
		if end += size; end < start {
			return nil, fmt.Errorf("tensor %q: the sizes up to here overflow 63 bits", t.Name)
		}
		entries[t.Name] = entry{t.DType, append([]int64{}, t.Shape...),
			[2]int64{start, end}} // append: [] and not null
	}
	for key, value := range metadata {
		if !utf8.ValidString(key) || !utf8.ValidString(value) {
			return nil, fmt.Errorf("metadata %q: %q is not UTF-8", key, value)
		}
	}
	return encode(entries, metadata)
}

func checkName(name string) error {
	switch {
	case name == metadataKey:
		return fmt.Errorf("a tensor may not be named %s: the name is the metadata's", metadataKey)
	case !utf8.ValidString(name):
		return fmt.Errorf("tensor name %q is not UTF-8", name)
	}
	return nil
}

// checkTensor returns the tensor's size, or an error if it cannot be written.
func checkTensor(t Tensor) (int64, error) {
	if t.Load == nil {
		return int64(len(t.Data)), t.checkData(t.Data)
	}
	if t.Data != nil {
		return 0, errors.New("it has both Data and Load, expected one of them")
	}
	return t.Size()
}

func encode(entries map[string]entry, metadata map[string]string) ([]byte, error) {
	var b bytes.Buffer
	b.Write(make([]byte, lengthSize))
	b.WriteByte('{')
	member := func(key string, value any) error {
		if b.Len() > lengthSize+1 {
			b.WriteByte(',')
		}
		if err := encodeJSON(&b, key); err != nil {
			return err
		}
		b.WriteByte(':')
		return encodeJSON(&b, value)
	}
	if len(metadata) > 0 {
		if err := member(metadataKey, metadata); err != nil { // maps are encoded with sorted keys
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		if err := member(name, entries[name]); err != nil {
			return nil, err
		}
	}
	b.WriteByte('}')
	for b.Len()%alignment != 0 {
		b.WriteByte(' ')
	}

	length := b.Len() - lengthSize
	if length > MaxHeader {
		return nil, fmt.Errorf("the header takes %d bytes, the format allows %d: fewer tensors, shorter names or less metadata",
			length, MaxHeader)
	}
	binary.LittleEndian.PutUint64(b.Bytes(), uint64(length))
	return b.Bytes(), nil
}

// encodeJSON appends a value as JSON without the escapes for HTML, which other writers of the format do
// not make.
func encodeJSON(b *bytes.Buffer, value any) error {
	encoder := json.NewEncoder(b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return err
	}
	b.Truncate(b.Len() - 1) // the newline that Encode ends with
	return nil
}

// WriteFile writes a file as Write does, as a whole or not at all: whoever opens path, after a failure
// or a loss of power too, finds either the new file complete or what was there before. After an error
// nothing is left beside it; a crash may leave a temporary file, as path followed by a number and
// ".tmp".
func WriteFile(path string, tensors []Tensor, metadata map[string]string) error {
	if err := disk.Write(path, func(w io.Writer) error { return write(w, tensors, metadata) }); err != nil {
		return fmt.Errorf("safetensors: writing %s: %w", path, err)
	}
	return nil
}
