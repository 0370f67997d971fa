package link

import (
	"bytes"
	"testing"
)

// What is no description of a parcel is refused, and what is one is written again as it was.
func FuzzLayout(f *testing.F) {
	f.Add(layout{{{absent: true, same: -1}, {same: -1, dtype: 6, shape: []int64{3, 2}, core: []int64{1, 2}, strides: []int64{2, 1}}, {same: 1}}, nil}.encode())
	f.Add([]byte{1, 1, 7})
	f.Fuzz(func(t *testing.T, text []byte) {
		l, err := parseLayout(text)
		if err != nil {
			return
		}
		if again := l.encode(); !bytes.Equal(again, text) {
			t.Errorf("%x is read as %+v and written as %x", text, l, again)
		}
		for _, s := range l.tensors() {
			if s.bytes() < 0 {
				t.Errorf("%x has a tensor of %d bytes", text, s.bytes())
			}
		}
	})
}
