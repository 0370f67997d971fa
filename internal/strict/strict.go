// Package strict reads JSON that people write. Unlike encoding/json it refuses fields that are unknown,
// repeated, of another case, missing or null.
package strict

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"penstock.example/internal/disk"
)

// Error is a mistake in the JSON.
type Error struct {
	Path   string // of the field, such as layers[3].name; "" is the whole text
	Line   int    // of a syntax error, from 1; otherwise 0
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
	return disk.Short(errors.New(text)).Error()
}

// Unmarshal reads a JSON object into *to, a struct. Fields with the tag omitzero may be missing.
// The error is an [*Error].
func Unmarshal(text []byte, to any) error {
	err := json.Unmarshal(text, to, json.RejectUnknownMembers(true))
	var syntax *jsontext.SyntacticError
	var semantic *json.SemanticError
	switch {
	case errors.As(err, &syntax):
		before := text[:min(syntax.ByteOffset, int64(len(text)))]
		return &Error{pathOf(syntax.JSONPointer), 1 + bytes.Count(before, []byte("\n")),
			fmt.Sprintf("%v; want JSON with each field once", syntax.Err)}
	case errors.As(err, &semantic) && errors.Is(err, json.ErrUnknownName):
		return &Error{Path: pathOf(semantic.JSONPointer),
			Reason: "unknown field; want one of the file's format, in its case"}
	case errors.As(err, &semantic) && semantic.GoType != nil:
		have := cmp.Or(string(semantic.JSONValue), map[jsontext.Kind]string{'{': "an object", '[': "an array",
			't': "true", 'f': "false", '"': "a text", '0': "a number"}[semantic.JSONKind])
		return &Error{Path: pathOf(semantic.JSONPointer),
			Reason: fmt.Sprintf("%.40s; want %s", have, wanted(semantic.GoType))}
	case err != nil:
		return &Error{Line: 1, Reason: err.Error()}
	}
	var all any
	_ = json.Unmarshal(text, &all) // the text is valid
	return checkComplete("", all, reflect.TypeOf(to))
}

func pathOf(at jsontext.Pointer) (path string) {
	for token := range at.Tokens() {
		if _, err := strconv.ParseUint(token, 10, 32); err == nil {
			path += "[" + token + "]"
		} else {
			path += "." + token
		}
	}
	return strings.TrimPrefix(path, ".")
}

// wanted describes the values of a type in an error.
func wanted(t reflect.Type) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return cmp.Or(map[reflect.Kind]string{reflect.Struct: "an object", reflect.Map: "an object",
		reflect.Slice: "an array", reflect.String: "a text", reflect.Bool: "true or false",
		reflect.Float64: "a number"}[t.Kind()], "a whole number, without a fraction or an exponent")
}

// checkComplete returns an error for a field that is null, or missing without the tag omitzero.
func checkComplete(path string, value any, t reflect.Type) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch value := value.(type) {
	case nil:
		return &Error{Path: path, Reason: "null; want " + wanted(t)}
	case []any:
		for i, element := range value {
			if err := checkComplete(fmt.Sprintf("%s[%d]", path, i), element, t.Elem()); err != nil {
				return err
			}
		}
	case map[string]any:
		for i := 0; t.Kind() == reflect.Struct && i < t.NumField(); i++ {
			name, options, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
			switch inner, have := value[name]; {
			case have:
				at := strings.TrimPrefix(path+"."+name, ".")
				if err := checkComplete(at, inner, t.Field(i).Type); err != nil {
					return err
				}
			case !strings.Contains(options, "omitzero"):
				return &Error{Path: path, Reason: fmt.Sprintf("the field %q is missing; want it", name)}
			}
		}
	}
	return nil
}

// Lines writes a struct as a JSON object with a line for each field, and for each element of its lists, so
// that people can read and compare files.
func Lines(v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	d := jsontext.NewDecoder(bytes.NewReader(text))
	separator := "{"
	for _, _ = d.ReadToken(); d.PeekKind() != '}'; separator = ",\n" { // the text is valid
		name, _ := d.ReadValue()
		out.WriteString(separator + string(name) + ":")
		value, _ := d.ReadValue()
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
	return out.Bytes(), nil
}
