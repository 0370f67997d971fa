// Package strict reads JSON that people write, and refuses what encoding/json lets pass: fields that
// are unknown, twice, of another case, missing or null.
package strict

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Error is a mistake in a text.
type Error struct {
	Path   string // of the field, such as layers[3].name; "" is the text as a whole
	Line   int    // of a text that is no JSON, from 1; 0 if the path says enough
	Reason string // the value found, and the value wanted
}

func (e *Error) Error() string {
	text := e.Reason
	if e.Path != "" {
		text = e.Path + ": " + text
	}
	if e.Line > 0 {
		text = fmt.Sprintf("line %d: %s", e.Line, text)
	}
	return text
}

// Unmarshal reads a text that is one object of JSON into the struct that to points to. Fields that
// are tagged omitzero may be missing. The error is an [*Error].
func Unmarshal(text []byte, to any) error {
	err := json.Unmarshal(text, to, json.RejectUnknownMembers(true))
	var syntax *jsontext.SyntacticError
	var semantic *json.SemanticError
	switch {
	case errors.As(err, &syntax):
		if len(bytes.TrimSpace(text)) == 0 {
			return &Error{Line: 1, Reason: "there is nothing; want JSON"}
		}
		before := text[:min(syntax.ByteOffset, int64(len(text)))]
		return &Error{pathOf(syntax.JSONPointer), 1 + bytes.Count(before, []byte("\n")),
			fmt.Sprintf("%v; want JSON with each field once", syntax.Err)}
	case errors.As(err, &semantic) && errors.Is(err, json.ErrUnknownName):
		return &Error{Path: pathOf(semantic.JSONPointer),
			Reason: "unknown field; want one of the file's format, in its case"}
	case errors.As(err, &semantic):
		have := string(semantic.JSONValue)
		if have == "" {
			have = map[jsontext.Kind]string{'{': "an object", '[': "an array", 't': "true", 'f': "false",
				'"': "a text", '0': "a number"}[semantic.JSONKind]
		}
		return &Error{Path: pathOf(semantic.JSONPointer),
			Reason: fmt.Sprintf("%s; want %s", Shown(have), wanted(semantic.GoType))}
	case err != nil:
		return &Error{Line: 1, Reason: err.Error()}
	}
	return complete("", text, reflect.TypeOf(to))
}

// Shown is a value for a message: in one line, the first 40 bytes of it.
func Shown(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > 40 {
		return strings.ToValidUTF8(text[:40], "") + "…"
	}
	return text
}

func pathOf(at jsontext.Pointer) (path string) {
	for token := range at.Tokens() {
		switch _, err := strconv.ParseUint(token, 10, 32); {
		case err == nil:
			path += "[" + token + "]"
		case path == "":
			path = token
		default:
			path += "." + token
		}
	}
	return path
}

// wanted describes the values of a type.
func wanted(t reflect.Type) string {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == nil {
		return "another value"
	}
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Slice:
		return "an array"
	case reflect.String:
		return "a text"
	case reflect.Bool:
		return "true or false"
	case reflect.Float64:
		return "a number"
	}
	return fmt.Sprintf("a whole number that %v holds, without a fraction or an exponent", t)
}

// complete returns an error for a field that is null, or missing though its type is not tagged omitzero.
func complete(path jsontext.Pointer, value jsontext.Value, t reflect.Type) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case value.Kind() == 'n':
		return &Error{Path: pathOf(path), Reason: "null; want " + wanted(t)}
	case t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8:
		var list []jsontext.Value
		if err := json.Unmarshal(value, &list); err != nil {
			return err
		}
		for i, element := range list {
			if err := complete(path.AppendToken(strconv.Itoa(i)), element, t.Elem()); err != nil {
				return err
			}
		}
	case t.Kind() == reflect.Struct:
		var fields map[string]jsontext.Value
		if err := json.Unmarshal(value, &fields); err != nil {
			return err
		}
		for field := range t.Fields() {
			name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
			inner, have := fields[name]
			switch {
			case have:
				if err := complete(path.AppendToken(name), inner, field.Type); err != nil {
					return err
				}
			case !strings.Contains(options, "omitzero"):
				return &Error{Path: pathOf(path),
					Reason: fmt.Sprintf("the field %q is missing; want it", name)}
			}
		}
	}
	return nil
}

// Lines writes a struct as an object of JSON with a line for each field, and for each element of its
// lists, so that people can read and compare files.
func Lines(v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	d := jsontext.NewDecoder(bytes.NewReader(text))
	separator := "{"
	for _, err = d.ReadToken(); err == nil && d.PeekKind() != '}'; separator = ",\n" {
		var name, value jsontext.Value
		if name, err = d.ReadValue(); err != nil {
			break
		}
		out.WriteString(separator + string(name) + ":")
		if value, err = d.ReadValue(); err != nil {
			break
		}
		var list []jsontext.Value
		if value.Kind() != '[' || json.Unmarshal(value, &list) != nil || len(list) == 0 {
			out.Write(value)
			continue
		}
		for i, element := range list {
			out.WriteString(map[bool]string{true: "[\n", false: ",\n"}[i == 0] + string(element))
		}
		out.WriteString("\n]")
	}
	out.WriteString("}\n")
	return out.Bytes(), err
}
