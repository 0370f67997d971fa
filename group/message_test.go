package group

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var messages = []message{
	challenge{nonce{1, 2}},
	hello{nonce{1}, nonce{2}, 3, 4, 12345, 1, "a machine", "1.13.0"},
	welcome{nonce{3}},
	refusal{"no"},
	waiting{"for rank 1"},
	ready{},
	beat{},
	part{7, 1, 300, "models", []byte{1, 2, 3}},
	part{1 << 40, 0, 0, "", nil},
	failed{2, -1, 5, "forward", "out of memory"},
	lost{1, "silent"},
	bye{3},
}

func anyKind(kind) bool { return true }

func TestMessagesComeBack(t *testing.T) {
	all := cmp.AllowUnexported(challenge{}, hello{}, welcome{}, refusal{}, waiting{}, part{}, bye{})
	for _, m := range messages {
		got, err := read(bytes.NewReader(frame(m)), anyKind)
		if p, ok := got.(part); ok && len(p.data) == 0 {
			p.data = nil
			got = p
		}
		if diff := cmp.Diff(m, got, all); err != nil || diff != "" {
			t.Errorf("%T: %v\n%s", m, err, diff)
		}
	}
}

func TestLongestMessagesFit(t *testing.T) {
	long := func(n int) string { return strings.Repeat("x", n) }
	for _, m := range []message{
		hello{host: long(maxName), libtorch: long(maxName)}, refusal{long(MaxMessage)}, waiting{long(MaxMessage)},
		part{total: MaxGather, what: long(MaxWhat), data: make([]byte, partBytes)},
		failed(Failure{Action: long(MaxAction), Message: long(MaxMessage)}), lost{Why: long(MaxMessage)}, challenge{}, welcome{}, bye{},
	} {
		if got := len(frame(m)) - headerBytes; got != longest[m.kind()] {
			t.Errorf("%T has %d bytes; want %d", m, got, longest[m.kind()])
		}
		if _, err := read(bytes.NewReader(frame(m)), anyKind); err != nil {
			t.Errorf("%T: %v", m, err)
		}
	}
}

func TestBytesThatAreNoMessage(t *testing.T) {
	header := func(k kind, n uint32) []byte { return binary.BigEndian.AppendUint32([]byte{byte(k)}, n) }
	for name, row := range map[string]struct {
		bytes []byte
		want  error
	}{
		"nothing":                {nil, io.EOF},
		"half a header":          {[]byte{1, 2}, io.ErrUnexpectedEOF},
		"a request":              {[]byte("GET / HTTP/1.1\r\n\r\n"), errMessage},
		"kind 0":                 {header(0, 0), errMessage},
		"too long":               {header(kindPart, 1<<31), errMessage},
		"cut off":                {header(kindBye, 4), io.ErrUnexpectedEOF},
		"too short":              {append(header(kindBye, 3), 0, 0, 0), errMessage},
		"more than it has":       {append(header(kindLost, 9), 0, 0, 0, 1, 0, 0, 0, 0, 9), errMessage},
		"a text that is cut off": {append(header(kindLost, 9), 0, 0, 0, 1, 0, 0, 0, 2, 'a'), errMessage},
		"a length below 0":       {append(header(kindLost, 8), 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff), errMessage},
		"not UTF-8":              {append(header(kindLost, 9), 0, 0, 0, 1, 0, 0, 0, 1, 0xff), errMessage},
		"another protocol":       {frame(challenge{})[:headerBytes+nonceBytes], io.ErrUnexpectedEOF},
		"more data than said":    {frame(part{total: 1, data: []byte{1, 2}}), errMessage},
		"more than a gather":     {frame(part{total: MaxGather + 1}), errMessage},
		"stage -2":               {frame(failed{Stage: -2}), errMessage},
	} {
		if m, err := read(bytes.NewReader(row.bytes), anyKind); !errors.Is(err, row.want) {
			t.Errorf("%s: got %v, %v; want %v", name, m, err, row.want)
		}
	}
	if _, err := read(bytes.NewReader(frame(beat{})), func(k kind) bool { return k == kindHello }); !errors.Is(err, errMessage) {
		t.Errorf("a message at the wrong time: got %v", err)
	}
}

// FuzzMessage reads any bytes: nothing panics, and what is read is written as it was.
func FuzzMessage(f *testing.F) {
	for _, m := range messages {
		f.Add(frame(m))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := read(bytes.NewReader(b), anyKind)
		if err == nil && !bytes.HasPrefix(b, frame(m)) {
			t.Errorf("%#v was read from %v and is written as %v", m, b, frame(m))
		}
	})
}
