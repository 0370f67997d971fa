package link

import (
	"encoding/json"
	"testing"
)

// What is no description of a parcel is refused, and what is one comes back when it is written again.
func FuzzLayout(f *testing.F) {
	text, err := json.Marshal(layout{{{Absent: true, Same: -1}, {Same: -1, DType: 6, Shape: []int64{3, 2}, Core: []int64{1, 2}, Strides: []int64{2, 1}}, {Same: 1}}, nil})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte("null"))
	f.Add([]byte(`[[{"Same":0}]]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		l, err := parseLayout(text)
		if err != nil {
			return
		}
		again, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		if same, err := parseLayout(again); err != nil || !same.equal(l) {
			t.Errorf("%s is read as %+v and written as %s: %v", text, l, again, err)
		}
		for _, s := range l.tensors() {
			if s.bytes() < 0 {
				t.Errorf("%s has a tensor of %d bytes", text, s.bytes())
			}
		}
	})
}
