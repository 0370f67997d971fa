package safetensors

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// span is a tensor's place in the data, in bytes from the data's start.
type span struct {
	Tensor
	begin, end int64
}

// headerReader reads a header, each tensor in its place. The JSON reader refuses what would hide damage or an
// attack: a name twice, unknown names, names in another case, and bytes that are not UTF-8.
type headerReader struct {
	spans    []span
	metadata map[string]string
}

// UnmarshalJSONFrom reads the members of the header's object.
func (h *headerReader) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	open, err := d.ReadToken()
	if err != nil {
		return err
	}
	if open.Kind() != '{' {
		return errors.New("want an object")
	}
	for d.PeekKind() != '}' {
		name, err := d.ReadToken()
		if err != nil {
			return err
		}
		key := name.String()
		if key == metadataKey {
			if err := json.UnmarshalDecode(d, &h.metadata); err != nil {
				return err
			}
			continue
		}
		var e struct {
			DType   *DType  `json:"dtype"`
			Shape   []int64 `json:"shape"`
			Offsets []int64 `json:"data_offsets"`
		}
		if err := json.UnmarshalDecode(d, &e); err != nil {
			return err
		}
		fail := func(format string, args ...any) error {
			return &FormatError{Tensor: key, Offset: lengthSize + d.InputOffset(),
				Problem: fmt.Sprintf(format, args...)}
		}
		if e.DType == nil || e.Shape == nil || len(e.Offsets) != 2 {
			return fail("want dtype, shape and two data_offsets")
		}
		s := span{Tensor{Name: key, DType: *e.DType, Shape: e.Shape}, e.Offsets[0], e.Offsets[1]}
		size, err := s.Size()
		switch {
		case err != nil:
			return fail("%v", err)
		case s.begin < 0 || s.end < s.begin:
			return fail("data_offsets [%d %d] end before they begin", s.begin, s.end)
		case size != s.end-s.begin:
			return fail("shape %v of %s takes %d bytes, data_offsets [%d %d] hold %d", s.Shape, s.DType,
				size, s.begin, s.end, s.end-s.begin)
		}
		h.spans = append(h.spans, s)
	}
	_, err = d.ReadToken()
	return err
}

// parseHeader returns the header's tensors in the order in which it names them, and its metadata or nil.
// It checks the header by itself, not yet that the spans fill the file.
func parseHeader(header []byte) ([]span, map[string]string, error) {
	var h headerReader
	err := json.Unmarshal(bytes.TrimRight(header, " "), &h, json.RejectUnknownMembers(true))
	if err == nil {
		return h.spans, h.metadata, nil
	}
	if format := (*FormatError)(nil); errors.As(err, &format) {
		return nil, nil, format
	}
	var syntax *jsontext.SyntacticError
	var wrong *json.SemanticError
	offset := int64(lengthSize)
	switch {
	case errors.As(err, &syntax):
		offset += syntax.ByteOffset
	case errors.As(err, &wrong):
		offset += wrong.ByteOffset
	}
	return nil, nil, &FormatError{Offset: offset, Problem: fmt.Sprintf("the header is not what the format demands: %v", err)}
}
