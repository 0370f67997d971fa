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

var frames = []frame{
	jsonFrame(kindChallenge, 0, challenge{protocol, []byte{1, 2}}),
	jsonFrame(kindHello, 3, hello{[]byte{1}, []byte{2}, 4, 12345, "a machine", "1.13.0"}),
	jsonFrame(kindWelcome, 0, welcome{[]byte{3}}),
	{kindRefused, 0, []byte("no")},
	{kind: kindReady},
	{kindEntry, 1, append(appendText(nil, "0/1"), 7, 8)},
	part{7, 1, 300, "models", []byte{1, 2, 3}}.frame(),
	part{1 << 40, 0, 0, "", nil}.frame(),
	{kind: kindBeat},
	endFrame(2, &FailedError{Failure{2, -1, 5, "forward", "out of memory"}}),
	endFrame(0, &LostError{1, "silent"}),
	{kind: kindBye, rank: 3},
}

func TestFramesComeBack(t *testing.T) {
	for _, f := range frames {
		got, err := readFrame(bytes.NewReader(f.encode()), maxBody)
		if len(got.body) == 0 {
			got.body = f.body
		}
		if diff := cmp.Diff(f, got, cmp.AllowUnexported(frame{})); err != nil || diff != "" {
			t.Errorf("kind %d: %v\n%s", f.kind, err, diff)
		}
	}
	want := part{7, 1, 300, "models", []byte{1, 2, 3}}
	if got, err := parsePart(want.frame()); err != nil || !cmp.Equal(got, want, cmp.AllowUnexported(part{})) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
}

// The longest frames that are sent can be read.
func TestLongestFramesFit(t *testing.T) {
	long := func(n int) string { return strings.Repeat("\x01", n) } // six bytes each in JSON
	for _, f := range []frame{
		part{total: MaxGather, what: long(MaxWhat), data: make([]byte, partBytes)}.frame(),
		endFrame(0, &FailedError{Failure{Action: long(2 * MaxAction), Message: long(2 * MaxMessage)}}),
		endFrame(0, &LostError{Why: long(2 * MaxMessage)}),
	} {
		if _, err := readFrame(bytes.NewReader(f.encode()), maxBody); err != nil {
			t.Errorf("kind %d: %v", f.kind, err)
		}
	}
	h := introduction(Config{Size: maxSize})
	h.Nonce, h.Proof = newNonce(), newNonce()
	h.Host, h.Libtorch = long(64), long(64)
	if _, err := readFrame(bytes.NewReader(jsonFrame(kindHello, maxSize-1, h).encode()), maxHandshake); err != nil {
		t.Errorf("a hello: %v", err)
	}
}

func TestBytesThatAreNoFrame(t *testing.T) {
	head := func(k kind, rank, n uint32) []byte {
		return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32([]byte{byte(k)}, rank), n)
	}
	for name, row := range map[string]struct {
		bytes []byte
		want  error
	}{
		"nothing":         {nil, io.EOF},
		"half a head":     {[]byte{1, 2}, io.ErrUnexpectedEOF},
		"a request":       {[]byte("GET / HTTP/1.1\r\n\r\n"), errFrame},
		"kind 0":          {head(0, 0, 0), errFrame},
		"an unknown kind": {head(kinds, 0, 0), errFrame},
		"no rank":         {head(kindBye, 1<<31, 0), errFrame},
		"too long":        {head(kindPart, 0, 1<<31), errFrame},
		"cut off":         {head(kindBye, 0, 4), io.ErrUnexpectedEOF},
	} {
		if f, err := readFrame(bytes.NewReader(row.bytes), maxBody); !errors.Is(err, row.want) {
			t.Errorf("%s: got %v, %v; want %v", name, f, err, row.want)
		}
	}
	if _, err := readFrame(bytes.NewReader(head(kindHello, 0, maxHandshake+1)), maxHandshake); !errors.Is(err, errFrame) {
		t.Errorf("a long hello: %v", err)
	}
	c := newControl(Config{Size: 3})
	for name, f := range map[string]frame{
		"a short part":          {kindPart, 1, make([]byte, 11)},
		"a what that is cut":    {kindPart, 1, append(make([]byte, 12), 0, 5, 'a')},
		"more data than said":   part{rank: 1, total: 1, data: []byte{1, 2}}.frame(),
		"more than a gather":    part{rank: 1, total: MaxGather + 1}.frame(),
		"an end of nobody":      jsonFrame(kindEnd, 1, ending{}),
		"an end of another":     endFrame(2, &LostError{Rank: 0}),
		"an end with more":      {kindEnd, 1, []byte(`{"Lost":{"Rank":1,"Why":"","More":1}}`)},
		"an entry that is cut":  {kindEntry, 1, []byte{0, 9, 'a'}},
		"a part of another":     part{rank: 2}.frame(),
		"a part of rank 0":      part{rank: 0}.frame(),
		"ready of a member":     {kind: kindReady, rank: 1},
		"refused by a member":   {kind: kindRefused, rank: 1},
		"a hello when it is in": frames[1],
	} {
		if err := c.take(&peer{rank: 1}, f); !errors.Is(err, errFrame) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzFrame reads any bytes: nothing panics, and what is read is written as it was.
func FuzzFrame(f *testing.F) {
	for _, m := range frames {
		f.Add(m.encode())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := readFrame(bytes.NewReader(b), maxBody)
		if err != nil {
			return
		}
		if !bytes.HasPrefix(b, got.encode()) {
			t.Errorf("%#v was read from %v and is written as %v", got, b, got.encode())
		}
		c := newControl(Config{Size: 3})
		defer c.board.Close()
		_ = c.take(&peer{rank: 1}, got)
	})
}
