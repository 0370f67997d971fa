package planfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// SyntaxError is what is wrong with a file of a chain or a plan.
type SyntaxError struct {
	What   string // "chain" or "plan"
	Path   string // of the field, such as layers[3].output_bytes; "" is the file as a whole
	Offset int64  // bytes, of the end of what was read last
	Reason string // what it is, and what is wanted
}

func (e *SyntaxError) Error() string {
	path := e.Path
	if path != "" {
		path += ": "
	}
	return fmt.Sprintf("remat: %s, byte %d: %s%s", e.What, e.Offset, path, e.Reason)
}

// reader reads JSON token by token. Unmarshal would keep the last of two equal fields, match names
// without case, and take null for anything: each hides a mistake in the file.
type reader struct {
	what    string
	decoder *json.Decoder
	path    string // of the field being read
}

// readFile reads a file that is one value of JSON, by the function given.
func readFile(what string, data []byte, value func(*reader) error) error {
	r := &reader{what: what, decoder: json.NewDecoder(bytes.NewReader(data))}
	r.decoder.UseNumber()
	for i := 0; i < len(data); {
		c, size := utf8.DecodeRune(data[i:])
		if c == utf8.RuneError && size <= 1 {
			return &SyntaxError{what, "", int64(i), fmt.Sprintf("the byte %#02x; want UTF-8", data[i])}
		}
		i += size
	}
	if err := value(r); err != nil {
		return err
	}
	r.path = ""
	// Not with More, which sees the end before a stray bracket.
	if token, err := r.decoder.Token(); err == nil {
		return r.fail("%s follows the %s; want the end of the file", describe(token), what)
	} else if !errors.Is(err, io.EOF) {
		return r.fail("what follows the %s is no JSON (%v); want the end of the file", what, err)
	}
	// The tokens above are not checked for every misplaced comma.
	var syntax *json.SyntaxError
	if err := json.Unmarshal(data, new(json.RawMessage)); errors.As(err, &syntax) {
		return &SyntaxError{what, "", syntax.Offset, syntax.Error() + "; want JSON"}
	}
	return nil
}

func (r *reader) fail(format string, args ...any) error {
	return &SyntaxError{r.what, r.path, r.decoder.InputOffset(), fmt.Sprintf(format, args...)}
}

func (r *reader) token(want string) (json.Token, error) {
	token, err := r.decoder.Token()
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return nil, r.fail("the file ends here; want %s", want)
	case err != nil:
		return nil, r.fail("%v; want %s", err, want)
	}
	return token, nil
}

// field is a field of an object.
type field struct {
	name     string
	optional bool
	read     func(*reader) error
}

// object reads an object that has these fields, each at most once, in any order. It returns which
// there were.
func (r *reader) object(fields []field) (seen map[string]bool, err error) {
	at := r.path
	defer func() {
		if err == nil {
			r.path = at
		}
	}()
	if err := r.open('{', "an object"); err != nil {
		return nil, err
	}
	seen = map[string]bool{}
	for r.decoder.More() {
		r.path = at
		token, err := r.token("a field or }")
		if err != nil {
			return nil, err
		}
		name, ok := token.(string)
		if !ok {
			return nil, r.fail("%s; want the name of a field", describe(token))
		}
		i := slices.IndexFunc(fields, func(f field) bool { return f.name == name })
		switch {
		case i < 0:
			return nil, r.fail("unknown field %q; %s", name, suggest(name, fields))
		case seen[name]:
			return nil, r.fail("the field %q is there twice; want it once", name)
		}
		seen[name] = true
		if r.path = name; at != "" {
			r.path = at + "." + name
		}
		if err := fields[i].read(r); err != nil {
			return nil, err
		}
	}
	r.path = at
	if _, err := r.token("}"); err != nil {
		return nil, err
	}
	for _, f := range fields {
		if !f.optional && !seen[f.name] {
			return nil, r.fail("the field %q is missing; want it", f.name)
		}
	}
	return seen, nil
}

// suggest says which name was meant, if one differs in case alone, or else which there are.
func suggest(name string, fields []field) string {
	var names []string
	for _, f := range fields {
		if strings.EqualFold(f.name, name) {
			return fmt.Sprintf("want %q", f.name)
		}
		names = append(names, f.name)
	}
	return "want " + strings.Join(names, ", ")
}

// array reads an array and calls element for each, to read it.
func (r *reader) array(element func(*reader) error) error {
	at := r.path
	if err := r.open('[', "an array"); err != nil {
		return err
	}
	for i := 0; r.decoder.More(); i++ {
		r.path = fmt.Sprintf("%s[%d]", at, i)
		if err := element(r); err != nil {
			return err
		}
	}
	r.path = at
	_, err := r.token("]")
	return err
}

func (r *reader) open(delimiter json.Delim, want string) error {
	token, err := r.token(want)
	if err != nil {
		return err
	}
	if token != delimiter {
		return r.fail("%s; want %s", describe(token), want)
	}
	return nil
}

// version reads the version of the format, which is to be 1.
func (r *reader) version() error {
	n, err := r.integer("the version, 1")
	if err == nil && n != 1 {
		return r.fail("version %d; want 1, the only one that is known here", n)
	}
	return err
}

// bytes reads a number of bytes.
func (r *reader) bytes() (int64, error) {
	n, err := r.integer("a number of bytes")
	if err == nil && n < 0 {
		return 0, r.fail("%d bytes; want 0 or more", n)
	}
	return n, err
}

// integer reads a whole number, written as one.
func (r *reader) integer(want string) (int64, error) {
	number, err := r.number(want)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(number.String(), 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return 0, r.fail("%s; want %s, at most %d", number, want, int64(math.MaxInt64))
	case err != nil:
		return 0, r.fail("%s; want %s, without a fraction or an exponent", number, want)
	}
	return n, nil
}

// count reads a number above 0.
func (r *reader) count(want string) (int, error) {
	n, err := r.integer(want)
	if err == nil && (n < 1 || int64(int(n)) != n) {
		return 0, r.fail("%d; want %s, 1 or more", n, want)
	}
	return int(n), err
}

// time reads microseconds.
func (r *reader) time() (float64, error) {
	const want = "a time in microseconds"
	number, err := r.number(want)
	if err != nil {
		return 0, err
	}
	t, err := strconv.ParseFloat(number.String(), 64)
	switch {
	case err != nil:
		return 0, r.fail("%s is too large; want %s", number, want)
	case t < 0:
		return 0, r.fail("%s; want %s, 0 or more", number, want)
	}
	return t + 0, nil // -0 becomes 0
}

func (r *reader) number(want string) (json.Number, error) {
	token, err := r.token(want)
	if err != nil {
		return "", err
	}
	number, ok := token.(json.Number)
	if !ok {
		return "", r.fail("%s; want %s", describe(token), want)
	}
	return number, nil
}

func (r *reader) text(want string) (string, error) {
	token, err := r.token(want)
	if err != nil {
		return "", err
	}
	text, ok := token.(string)
	if !ok {
		return "", r.fail("%s; want %s", describe(token), want)
	}
	return text, nil
}

func (r *reader) truth() (bool, error) {
	token, err := r.token("true or false")
	if err != nil {
		return false, err
	}
	truth, ok := token.(bool)
	if !ok {
		return false, r.fail("%s; want true or false", describe(token))
	}
	return truth, nil
}

// into makes what reads a field from what reads a value, and the place for it.
func into[T any](read func(*reader) (T, error), place *T) func(*reader) error {
	return func(r *reader) (err error) {
		*place, err = read(r)
		return err
	}
}

func describe(token json.Token) string {
	switch t := token.(type) {
	case nil:
		return "null"
	case string:
		if len(t) > 40 {
			t = strings.ToValidUTF8(t[:40], "") + "…"
		}
		return strconv.Quote(t)
	case json.Delim:
		return map[json.Delim]string{'{': "an object", '[': "an array", '}': "a }", ']': "a ]"}[t]
	}
	return fmt.Sprint(token)
}
