// Package safetensors reads and writes the safetensors file format: named arrays of numbers with a JSON
// header. It does not need libtorch. A file is
//
//	8 bytes    length n of the header, little-endian
//	n bytes    header: {"__metadata__":{"key":"value"},
//	           "name":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}
//	the rest   the tensors' numbers, little-endian, row-major, without gaps; offsets count from here
//
// (https://github.com/huggingface/safetensors, README, "Format").
//
// The reader refuses files that are damaged, ambiguous or unusual. It never allocates more than the size
// of the file. The writer's output does not depend on the order of tensors.
package safetensors

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/bits"
	"slices"

	"github.com/go-json-experiment/json"

	"penstock.example/internal/disk"
)

const (
	maxHeader   = 100_000_000 // bytes, as in the reference implementation
	lengthSize  = 8           // bytes of the header's length
	alignment   = 8           // bytes, of the data's start in the file
	metadataKey = "__metadata__"
)

// DType is the number format of a tensor's elements.
type DType string

const (
	F64  DType = "F64"
	F32  DType = "F32"
	F16  DType = "F16"
	BF16 DType = "BF16"
	I64  DType = "I64"
	I32  DType = "I32"
	I16  DType = "I16"
	I8   DType = "I8"
	U8   DType = "U8"
	Bool DType = "BOOL" // a byte each, 0 or 1
)

var sizes = map[DType]int64{F64: 8, I64: 8, F32: 4, I32: 4, F16: 2, BF16: 2, I16: 2, I8: 1, U8: 1, Bool: 1}

// Size returns the bytes of one element, or 0 for an unknown dtype.
func (d DType) Size() int64 { return sizes[d] }

// Tensor is a named array. A tensor to be written has either Data or Load.
type Tensor struct {
	Name  string
	DType DType
	Shape []int64 // empty for a scalar; a dimension may be 0

	// Data holds the elements, little-endian and row-major.
	Data []byte

	// Load passes the elements to write, in one or several pieces of whole elements, and returns
	// write's error. It may reuse a piece after write returns. Writing a file calls Load once.
	Load func(write func(piece []byte) error) error
}

// Size returns the bytes of the elements. It returns an error if the dtype is unknown, a dimension is
// negative, or the product of the sizes above 0 overflows an int64.
func (t Tensor) Size() (int64, error) {
	width := t.DType.Size()
	if width == 0 {
		return 0, fmt.Errorf("unknown dtype %q, expected one of F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL",
			string(t.DType))
	}
	size := uint64(width)
	for i, dim := range t.Shape {
		if dim < 0 {
			return 0, fmt.Errorf("dimension %d of shape %v is negative", i, t.Shape)
		}
		high, low := bits.Mul64(size, uint64(max(dim, 1)))
		if high != 0 || low > math.MaxInt64 {
			return 0, fmt.Errorf("shape %v of %s overflows: its size in bytes does not fit in 63 bits",
				t.Shape, t.DType)
		}
		size = low
	}
	if slices.Contains(t.Shape, 0) {
		return 0, nil
	}
	return int64(size), nil
}

// checkData returns an error unless data has the tensor's size and valid elements.
func (t Tensor) checkData(data []byte) error {
	size, err := t.Size()
	if err != nil {
		return err
	}
	if int64(len(data)) != size {
		return t.sizeError(size, int64(len(data)))
	}
	return t.checkElements(data, 0)
}

func (t Tensor) sizeError(want, have int64) error {
	return fmt.Errorf("shape %v of %s takes %d bytes, the data has %d", t.Shape, t.DType, want, have)
}

// checkElements returns an error for BOOL elements other than 0 and 1, which are undefined behaviour in
// C++. first is the index of the first element.
func (t Tensor) checkElements(data []byte, first int64) error {
	i := slices.IndexFunc(data, func(b byte) bool { return t.DType == Bool && b > 1 })
	if i < 0 {
		return nil
	}
	return fmt.Errorf("element %d of BOOL is the byte %d, expected 0 or 1", first+int64(i), data[i])
}

// Write writes the tensors and the metadata to w. The bytes do not depend on their order:
//
//   - The header has __metadata__ first with its keys sorted, then the tensors sorted by name. It is
//     padded with spaces so that the data starts at a multiple of 8.
//   - The data is sorted by decreasing size of elements, then by name. So every tensor is aligned to its
//     elements.
//
// Write checks Load's pieces as they come, and everything else before it writes.
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
	err = t.Load(func(piece []byte) error {
		if err := t.checkElements(piece, written); err != nil {
			return err
		}
		if written += int64(len(piece)); written > size {
			return t.sizeError(size, written)
		}
		_, err := w.Write(piece)
		return err
	})
	if err != nil {
		return fmt.Errorf("loading its data: %w", err)
	}
	if written < size {
		err = t.sizeError(size, written)
	}
	return err
}

// entry is a tensor's value in the header. The fields are in the order of the file.
type entry struct {
	DType   DType   `json:"dtype"`
	Shape   []int64 `json:"shape"`
	Offsets []int64 `json:"data_offsets"`
}

// header returns the length, the header and its padding. The data is in the order of tensors.
func header(tensors []Tensor, metadata map[string]string) ([]byte, error) {
	entries := make(map[string]entry, len(tensors))
	end := int64(0)
	for _, t := range tensors {
		if _, twice := entries[t.Name]; twice || t.Name == metadataKey {
			return nil, fmt.Errorf("tensor %q: want each name once, and no tensor named %s", t.Name,
				metadataKey)
		}
		size, err := t.Size()
		if err == nil && t.Load == nil {
			err = t.checkData(t.Data)
		}
		if err != nil {
			return nil, fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		start := end
		if end += size; end < start {
			return nil, fmt.Errorf("tensor %q: the size of the file overflows 63 bits", t.Name)
		}
		entries[t.Name] = entry{t.DType, t.Shape, []int64{start, end}}
	}
	head, err := json.Marshal(entries, json.Deterministic(true))
	if err == nil && len(metadata) > 0 {
		var first []byte
		first, err = json.Marshal(map[string]any{metadataKey: metadata}, json.Deterministic(true))
		if len(entries) > 0 { // join {first} and {head} to {first,head}
			first[len(first)-1], head = ',', head[1:]
			head = append(first, head...)
		} else {
			head = first
		}
	}
	if err != nil {
		return nil, fmt.Errorf("the header: %w", err)
	}
	for len(head)%alignment != 0 {
		head = append(head, ' ')
	}
	if len(head) > maxHeader {
		return nil, fmt.Errorf("the header takes %d bytes, the format allows %d", len(head), maxHeader)
	}
	return append(binary.LittleEndian.AppendUint64(nil, uint64(len(head))), head...), nil
}

// WriteFile is Write to a file. A failure or a loss of power leaves an existing file unchanged. A crash may
// leave a temporary file: path, a number and ".tmp".
func WriteFile(path string, tensors []Tensor, metadata map[string]string) error {
	if err := disk.Write(path, func(w io.Writer) error { return write(w, tensors, metadata) }); err != nil {
		return fmt.Errorf("safetensors: writing %s: %w", path, err)
	}
	return nil
}
