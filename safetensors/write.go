package safetensors

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"slices"

	"github.com/go-json-experiment/json"

	"penstock.example/internal/disk"
)

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
			return nil, fmt.Errorf("two tensors are named %q, or one %s", t.Name, metadataKey)
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
