package arg

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Object is the fields of an object of JSON, which has these and no others, each at most once. At is its path
// in the file, such as devices[0]; "" is the file itself, of which nothing may follow the object. An error
// says the path, what is there, and what is wanted.
func Object(at string, text []byte, fields ...string) (map[string]json.RawMessage, error) {
	if at == "" {
		if err := JSON(text); err != nil {
			return nil, err
		}
	}
	d := json.NewDecoder(bytes.NewReader(text))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		if at == "" {
			at = "the file"
		}
		return nil, fmt.Errorf("%s is %s; want an object, {%q:...}", at, Shown(text), fields[0])
	}
	out := map[string]json.RawMessage{}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return nil, err
		}
		name, _ := token.(string) // of an object that was read before
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, err
		}
		switch _, twice := out[name]; {
		case !slices.Contains(fields, name):
			want := OneOf(name, fields)
			if len(fields) > 8 {
				want = Meant(name, fields) + "want fields such as " + strings.Join(fields[:3], ", ")
			}
			return nil, fmt.Errorf("%s is not known; %s", Path(at, name), want)
		case twice:
			return nil, fmt.Errorf("%s is there twice; want it once", Path(at, name))
		}
		out[name] = value
	}
	return out, nil
}

// JSON says on which line a text stops being one value of JSON.
func JSON(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	err := d.Decode(new(json.RawMessage))
	var wrong *json.SyntaxError
	line := func(offset int64) int {
		return 1 + bytes.Count(text[:min(int(offset), len(text))],
			[]byte("\n"))
	}
	switch {
	case errors.Is(err, io.EOF):
		return errors.New("the file is empty; want JSON")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("line %d: the file ends within a value; want all of it", line(int64(len(text))))
	case errors.As(err, &wrong):
		return fmt.Errorf("line %d is no JSON: %w; want it mended", line(wrong.Offset), err)
	case err != nil:
		return err
	}
	if rest := bytes.TrimSpace(text[d.InputOffset():]); len(rest) > 0 {
		return fmt.Errorf("line %d: %s follows what the file has; want its end",
			line(int64(len(text)-len(rest))), Shown(rest))
	}
	return nil
}

// Elements is the elements of an array of JSON.
func Elements(at string, text []byte) (list []json.RawMessage, err error) {
	if json.Unmarshal(text, &list) != nil {
		return nil, fmt.Errorf("%s is %s; want an array, [...]", at, Shown(text))
	}
	return list, nil
}

// Path is the path of a field of what is at a path.
func Path(at, field string) string {
	if at == "" {
		return field
	}
	return at + "." + field
}

// Shown is a value of JSON as it is written, in one line, of which the first 60 bytes.
func Shown(text []byte) string {
	line := strings.Join(strings.Fields(string(text)), " ")
	if len(line) > 60 {
		line = strings.ToValidUTF8(line[:60], "") + "…"
	}
	return line
}

// Absent says that a field is left out, or null.
func Absent(text json.RawMessage) bool { return len(text) == 0 || string(text) == "null" }
