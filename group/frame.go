package group

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Members send frames over the control connection. A frame has a kind, the rank of its first sender, a length
// and a body of JSON. The length is checked before the body is read.
//
//	rank 0                     member
//	greeting   ───────────►                a random number
//	           ◄───────────    greeting    the member's process, and proof that it knows the token
//	greeting   ───────────►                proof that rank 0 knows the token; or end, with the reason
//	ready      ───────────►                all members are connected
//	   address, part, beat, end, bye: both ways; rank 0 forwards address, part and bye
type kind byte

const (
	kindGreeting kind = 1 + iota
	kindReady
	kindAddress // of Gloo
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
	maxHandshake = 1 << 10              // bytes of a body before the other side has proved itself
	maxBody      = maxPart/3*4 + 64<<10 // bytes of a body afterwards: the bytes of a part, in base64
)

var errFrame = errors.New("not a message of this protocol")

func (f frame) encode() []byte {
	out := append(make([]byte, 0, headBytes+len(f.body)), byte(f.kind))
	out = binary.BigEndian.AppendUint32(out, uint32(f.rank))
	return append(binary.BigEndian.AppendUint32(out, uint32(len(f.body))), f.body...)
}

// readFrame reads a frame with a body of at most so many bytes.
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
	var body bytes.Buffer // grows with the bytes that arrive
	if _, err := io.CopyN(&body, r, int64(n)); err == io.EOF {
		return frame{}, io.ErrUnexpectedEOF
	} else if err != nil {
		return frame{}, err
	}
	f.body = body.Bytes()
	return f, nil
}

func jsonFrame(k kind, rank int, body any) frame {
	text, err := json.Marshal(body)
	if err != nil {
		panic(err) // the types of this package have no error
	}
	return frame{k, rank, text}
}

func (f frame) decode(to any) error {
	if err := json.Unmarshal(f.body, to); err != nil {
		return fmt.Errorf("%w: the body of kind %d: %w", errFrame, f.kind, err)
	}
	return nil
}

// ending is the body of kindEnd: one of three errors.
type ending struct {
	Failed  *FailedError  `json:",omitempty"`
	Lost    *LostError    `json:",omitempty"`
	Refused *refusedError `json:",omitempty"`
}

func endFrame(rank int, err error) frame {
	var e ending
	switch err := err.(type) {
	case *FailedError:
		e.Failed = err
	case *LostError:
		e.Lost = err
	case *refusedError:
		e.Refused = &refusedError{cut(err.Text, maxHandshake*3/4)}
	}
	return jsonFrame(kindEnd, rank, e)
}

// reason returns the error that an end carries, or errFrame.
func (f frame) reason() error {
	var e ending
	err := f.decode(&e)
	switch {
	case err != nil:
		return err
	case e.Failed != nil:
		return e.Failed
	case e.Lost != nil:
		return e.Lost
	case e.Refused != nil:
		return e.Refused
	}
	return errFrame
}
