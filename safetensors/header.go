package safetensors

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"
)

// span is a tensor's place in the data, in bytes from the data's start.
type span struct {
	Tensor
	begin, end int64
}

// parser reads a header token by token: encoding/json's Unmarshal keeps the last of two equal keys, ignores keys that it
// does not know, matches keys without case and takes null for anything, and each of these would hide damage or an attack.
type parser struct {
	decoder *json.Decoder
	tensor  string // being read, for errors
}

// parseHeader returns the header's tensors in the order in which it names them, and its metadata, nil if there is none.
// It checks the header by itself, not yet that the spans fit the tensors and the file.
func parseHeader(header []byte) ([]span, map[string]string, error) {
	if err := checkJSON(header); err != nil {
		return nil, nil, err
	}
	p := &parser{decoder: json.NewDecoder(bytes.NewReader(header))}
	p.decoder.UseNumber()

	var spans []span
	var metadata map[string]string
	err := p.object("the header", func(key string) error {
		if key == metadataKey {
			var err error
			metadata, err = p.metadata()
			return err
		}
		p.tensor = key
		s, err := p.span(key)
		spans = append(spans, s)
		p.tensor = ""
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	return spans, metadata, nil
}

// checkJSON returns an error unless the header is one JSON object, in UTF-8, followed by spaces alone.
func checkJSON(header []byte) error {
	if len(header) == 0 || header[0] != '{' {
		return &FormatError{Offset: lengthSize, Problem: fmt.Sprintf("the header starts with %s, expected '{'", firstByte(header))}
	}
	for i := 0; i < len(header); {
		r, size := utf8.DecodeRune(header[i:])
		if r == utf8.RuneError && size <= 1 {
			return &FormatError{Offset: lengthSize + int64(i), Problem: fmt.Sprintf("the header has the byte %#02x where UTF-8 is expected", header[i])}
		}
		i += size
	}
	var raw json.RawMessage
	var syntax *json.SyntaxError
	if err := json.Unmarshal(header, &raw); errors.As(err, &syntax) {
		return &FormatError{Offset: lengthSize + max(syntax.Offset-1, 0), Problem: "the header is not JSON: " + syntax.Error()}
	} else if err != nil {
		return &FormatError{Offset: lengthSize, Problem: "the header is not JSON: " + err.Error()}
	}
	text := bytes.TrimRight(header, " ")
	if last := text[len(text)-1]; last != '}' {
		return &FormatError{Offset: lengthSize + int64(len(text)) - 1, Problem: fmt.Sprintf("the header is padded with %q, expected spaces", last)}
	}
	return nil
}

func firstByte(header []byte) string {
	if len(header) == 0 {
		return "nothing"
	}
	return strconv.QuoteRune(rune(header[0]))
}

func (p *parser) fail(format string, args ...any) error {
	return &FormatError{Tensor: p.tensor, Offset: lengthSize + p.decoder.InputOffset(), Problem: fmt.Sprintf(format, args...)}
}

// token returns the next token. The header is known to be valid JSON, so it has one.
func (p *parser) token() (json.Token, error) {
	token, err := p.decoder.Token()
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, p.fail("the header is not JSON: %v", err)
	}
	return token, nil
}

// object reads an object and calls member after each key, to read the value.
func (p *parser) object(what string, member func(key string) error) error {
	if err := p.open(what, '{', "an object"); err != nil {
		return err
	}
	seen := map[string]bool{}
	for p.decoder.More() {
		token, err := p.token()
		if err != nil {
			return err
		}
		key, ok := token.(string)
		if !ok {
			return p.fail("%s has the key %v, expected a string", what, token)
		}
		if seen[key] {
			return p.fail("%s has the key %q twice", what, key)
		}
		seen[key] = true
		if err := member(key); err != nil {
			return err
		}
	}
	_, err := p.token() // }
	return err
}

func (p *parser) open(what string, delimiter json.Delim, kind string) error {
	token, err := p.token()
	if err != nil {
		return err
	}
	if token != delimiter {
		return p.fail("%s is %v, expected %s", what, describe(token), kind)
	}
	return nil
}

func (p *parser) text(what string) (string, error) {
	token, err := p.token()
	if err != nil {
		return "", err
	}
	text, ok := token.(string)
	if !ok {
		return "", p.fail("%s is %v, expected a string", what, describe(token))
	}
	return text, nil
}

// integers reads an array of integers from 0 to 2^63-1, written as digits alone.
func (p *parser) integers(what string) ([]int64, error) {
	if err := p.open(what, '[', "an array"); err != nil {
		return nil, err
	}
	list := []int64{}
	for p.decoder.More() {
		token, err := p.token()
		if err != nil {
			return nil, err
		}
		number, ok := token.(json.Number)
		if !ok {
			return nil, p.fail("%s has %v, expected an integer", what, describe(token))
		}
		value, err := strconv.ParseUint(number.String(), 10, 63)
		if err != nil {
			return nil, p.fail("%s has %v, expected an integer from 0 to 2^63-1", what, number)
		}
		list = append(list, int64(value))
	}
	_, err := p.token() // ]
	return list, err
}

func (p *parser) metadata() (map[string]string, error) {
	metadata := map[string]string{}
	err := p.object(metadataKey, func(key string) error {
		value, err := p.text(fmt.Sprintf("%s's %q", metadataKey, key))
		metadata[key] = value
		return err
	})
	return metadata, err
}

func (p *parser) span(name string) (span, error) {
	s := span{Tensor: Tensor{Name: name}}
	var offsets []int64
	err := p.object("the tensor's entry", func(key string) (err error) {
		switch key {
		case "dtype":
			var text string
			text, err = p.text(key)
			s.DType = DType(text)
		case "shape":
			s.Shape, err = p.integers(key)
		case "data_offsets":
			offsets, err = p.integers(key)
		default:
			err = p.fail("the entry has the key %q, expected dtype, shape and data_offsets", key)
		}
		return err
	})
	switch {
	case err != nil:
		return s, err
	case s.DType == "":
		return s, p.fail("the entry has no dtype")
	case s.Shape == nil:
		return s, p.fail("the entry has no shape")
	case offsets == nil:
		return s, p.fail("the entry has no data_offsets")
	case len(offsets) != 2:
		return s, p.fail("data_offsets %v has %d numbers, expected begin and end", offsets, len(offsets))
	}
	s.begin, s.end = offsets[0], offsets[1]
	return s, p.checkSize(s)
}

// checkSize returns an error unless the span is as long as the tensor is large.
func (p *parser) checkSize(s span) error {
	if s.end < s.begin {
		return p.fail("data_offsets [%d %d] end before they begin", s.begin, s.end)
	}
	size, err := s.Size()
	if err != nil {
		return p.fail("%v", err)
	}
	if size != s.end-s.begin {
		return p.fail("shape %v of %s takes %d bytes, data_offsets [%d %d] hold %d",
			s.Shape, s.DType, size, s.begin, s.end, s.end-s.begin)
	}
	return nil
}

func describe(token json.Token) string {
	switch token := token.(type) {
	case nil:
		return "null"
	case string:
		return strconv.Quote(token)
	case json.Delim:
		if token == '{' {
			return "an object"
		}
		return "an array"
	}
	return fmt.Sprint(token)
}
