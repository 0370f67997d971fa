package planfile

import (
	"bytes"
	"encoding/json"
)

// writer writes an object as JSON with a line for each element of its lists, so that people can
// read and compare files. Its zero value is an object without fields.
type writer struct {
	b   bytes.Buffer
	err error // the first
}

func (w *writer) name(name string) {
	if w.b.Len() == 0 {
		w.b.WriteByte('{')
	} else {
		w.b.WriteString(",\n")
	}
	w.value(name)
	w.b.WriteByte(':')
}

func (w *writer) value(v any) {
	e := json.NewEncoder(&w.b)
	e.SetEscapeHTML(false) // names of layers such as "<lambda>" are for reading
	if err := e.Encode(v); err != nil && w.err == nil {
		w.err = err
	}
	w.b.Truncate(len(bytes.TrimSuffix(w.b.Bytes(), []byte("\n"))))
}

func (w *writer) field(name string, v any) {
	w.name(name)
	w.value(v)
}

// list writes a list of n elements.
func (w *writer) list(name string, n int, at func(i int) any) {
	w.name(name)
	w.b.WriteByte('[')
	for i := range n {
		if i > 0 {
			w.b.WriteByte(',')
		}
		w.b.WriteByte('\n')
		w.value(at(i))
	}
	if n > 0 {
		w.b.WriteByte('\n')
	}
	w.b.WriteByte(']')
}

func (w *writer) end() ([]byte, error) {
	w.b.WriteString("}\n")
	return w.b.Bytes(), w.err
}
