package group

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Members send frames over the control connection. A frame has a kind, the rank of the member that it
// comes from, a length and a body. Nothing in it is run, and the length is checked before the body is read.
//
//	rank 0                     member
//	challenge  ───────────►                a random number
//	           ◄───────────    hello       who it is, and proof that it knows the token
//	welcome    ───────────►                proof that rank 0 knows it; or refused, with the reason
//	ready      ───────────►                all members are connected
//	   entry, part, beat, end, bye: both ways; rank 0 hands on entry, part and bye
//
// Bodies are JSON. The bodies of part and entry begin with numbers and lengths instead, big-endian, and
// raw bytes follow.
type kind byte

const (
	kindChallenge kind = 1 + iota
	kindHello
	kindWelcome
	kindRefused
	kindReady
	kindEntry
	kindPart
	kindBeat
	kindEnd
	kindBye
	kinds
)

type frame struct {
	kind kind
	rank int
	body []byte
}

const (
	headBytes    = 9
	maxHandshake = 1 << 10       // bytes of a body before the other side has proved that it knows the token
	maxBody      = 1<<20 + 1<<10 // bytes of a body afterwards
	// partBytes is the most data of a part. It is little, so that a heartbeat or a failure comes soon.
	partBytes = 64 << 10
)

// errFrame is the error of unexpected bytes.
var errFrame = errors.New("not a message of this protocol")

func (f frame) encode() []byte {
	out := append(make([]byte, 0, headBytes+len(f.body)), byte(f.kind))
	out = binary.BigEndian.AppendUint32(out, uint32(f.rank))
	return append(binary.BigEndian.AppendUint32(out, uint32(len(f.body))), f.body...)
}

// readFrame reads a frame with a body of at most that length.
func readFrame(r io.Reader, most int) (frame, error) {
	var head [headBytes]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return frame{}, err
	}
	f := frame{kind: kind(head[0]), rank: int(binary.BigEndian.Uint32(head[1:]))}
	n := binary.BigEndian.Uint32(head[5:])
	if f.kind == 0 || f.kind >= kinds || f.rank >= maxSize || int64(n) > int64(most) {
		return frame{}, fmt.Errorf("%w: kind %d of rank %d with %d bytes", errFrame, f.kind, f.rank, n)
	}
	f.body = make([]byte, n)
	if _, err := io.ReadFull(r, f.body); err == io.EOF {
		return frame{}, io.ErrUnexpectedEOF
	} else if err != nil {
		return frame{}, err
	}
	return f, nil
}

// jsonFrame makes a frame with a body of JSON.
func jsonFrame(k kind, rank int, body any) frame {
	text, err := json.Marshal(body)
	if err != nil {
		panic(err) // the types of this package have no error
	}
	return frame{k, rank, text}
}

// decode reads a body of JSON.
func (f frame) decode(to any) error {
	d := json.NewDecoder(bytes.NewReader(f.body))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return fmt.Errorf("%w: the body of kind %d: %w", errFrame, f.kind, err)
	}
	return nil
}

// part is a piece of the bytes that a rank gives to a gather. The pieces come in order, and have total bytes
// together.
type part struct {
	number      uint64
	rank, total int
	what        string
	data        []byte
}

func (p part) frame() frame {
	out := binary.BigEndian.AppendUint64(nil, p.number)
	out = binary.BigEndian.AppendUint32(out, uint32(p.total))
	return frame{kindPart, p.rank, append(appendText(out, p.what), p.data...)}
}

func parsePart(f frame) (p part, err error) {
	if len(f.body) < 12 {
		return p, errFrame
	}
	p.number, p.rank, p.total = binary.BigEndian.Uint64(f.body), f.rank, int(binary.BigEndian.Uint32(f.body[8:]))
	p.what, p.data, err = cutText(f.body[12:])
	if err == nil && (p.total > MaxGather || len(p.data) > p.total) {
		err = fmt.Errorf("%w: a gather of %d bytes with a part of %d", errFrame, p.total, len(p.data))
	}
	return p, err
}

// appendText appends a text of at most 64 KiB, with its length. cutText takes it off.
func appendText(to []byte, text string) []byte {
	return append(binary.BigEndian.AppendUint16(to, uint16(len(text))), text...)
}

func cutText(b []byte) (text string, rest []byte, err error) {
	if len(b) < 2 || len(b)-2 < int(binary.BigEndian.Uint16(b)) {
		return "", nil, errFrame
	}
	n := 2 + int(binary.BigEndian.Uint16(b))
	return string(b[2:n]), b[n:], nil
}
