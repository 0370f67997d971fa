package group

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

// What members say to each other over the control connection: frames of a kind, a length and a
// payload of that kind, in big-endian numbers. Nothing in them is run, and each kind has a longest
// payload, which is checked before it is read.
//
//	rank 0                     member
//	challenge  ───────────►
//	           ◄───────────    hello        who it is, and that it knows the token
//	welcome    ───────────►                 that rank 0 knows it too; or refusal
//	waiting    ───────────►                 for whom
//	ready      ───────────►                 all are there
//	   beat, part, failed, lost, bye: both ways; rank 0 hands on what is for all
type kind byte

const (
	kindChallenge kind = 1 + iota
	kindHello
	kindWelcome
	kindRefusal
	kindWaiting
	kindReady
	kindBeat
	kindPart
	kindFailed
	kindLost
	kindBye
)

const (
	headerBytes = 5
	nonceBytes  = 32
	// partBytes is the most data of a part: little enough for a heartbeat or a failure to come soon.
	partBytes = 64 << 10
	maxName   = 255
)

// longest is the most bytes of a payload by kind.
var longest = map[kind]int{
	kindChallenge: len(magic) + nonceBytes,
	kindHello:     2*nonceBytes + 4*4 + 2*(4+maxName),
	kindWelcome:   nonceBytes,
	kindRefusal:   4 + MaxMessage,
	kindWaiting:   4 + MaxMessage,
	kindReady:     0,
	kindBeat:      0,
	kindPart:      8 + 2*4 + 4 + MaxWhat + 4 + partBytes,
	kindFailed:    3*4 + 4 + MaxAction + 4 + MaxMessage,
	kindLost:      4 + 4 + MaxMessage,
	kindBye:       4,
}

// magic begins what rank 0 says first, with the version of these messages.
const magic = "penstock 1\n"

type nonce [nonceBytes]byte

// message is one of the types below.
type message interface {
	kind() kind
	put(*writer)
}

type (
	challenge struct{ nonce nonce }
	hello     struct {
		nonce, proof    nonce
		rank, size, pid int
		refuses         int // 1 of who comes to say why it will not join, or 0
		host, libtorch  string
	}
	welcome struct{ proof nonce }
	refusal struct{ text string }
	waiting struct{ text string }
	ready   struct{}
	beat    struct{}
	// part is a piece of what a rank gives to a gather. The pieces come in order, and total is how
	// many bytes they have together.
	part struct {
		number      uint64
		rank, total int
		what        string
		data        []byte
	}
	failed Failure
	lost   LostError
	bye    struct{ rank int }
)

func (challenge) kind() kind { return kindChallenge }
func (hello) kind() kind     { return kindHello }
func (welcome) kind() kind   { return kindWelcome }
func (refusal) kind() kind   { return kindRefusal }
func (waiting) kind() kind   { return kindWaiting }
func (ready) kind() kind     { return kindReady }
func (beat) kind() kind      { return kindBeat }
func (part) kind() kind      { return kindPart }
func (failed) kind() kind    { return kindFailed }
func (lost) kind() kind      { return kindLost }
func (bye) kind() kind       { return kindBye }

func (m challenge) put(w *writer) { w.raw([]byte(magic)); w.raw(m.nonce[:]) }
func (m hello) put(w *writer) {
	w.raw(m.nonce[:])
	w.raw(m.proof[:])
	w.number(m.rank)
	w.number(m.size)
	w.number(m.pid)
	w.number(m.refuses)
	w.text(m.host)
	w.text(m.libtorch)
}
func (m welcome) put(w *writer) { w.raw(m.proof[:]) }
func (m refusal) put(w *writer) { w.text(m.text) }
func (m waiting) put(w *writer) { w.text(m.text) }
func (ready) put(*writer)       {}
func (beat) put(*writer)        {}
func (m part) put(w *writer) {
	w.bytes = binary.BigEndian.AppendUint64(w.bytes, m.number)
	w.number(m.rank)
	w.number(m.total)
	w.text(m.what)
	w.text(string(m.data))
}
func (m failed) put(w *writer) {
	w.number(m.Rank)
	w.number(m.Stage)
	w.number(m.MicroBatch)
	w.text(m.Action)
	w.text(m.Message)
}
func (m lost) put(w *writer) { w.number(m.Rank); w.text(m.Why) }
func (m bye) put(w *writer)  { w.number(m.rank) }

// frame is a message as it is sent. Texts are cut to what their kind may have, before.
func frame(m message) []byte {
	w := &writer{make([]byte, headerBytes, 64)}
	m.put(w)
	w.bytes[0] = byte(m.kind())
	binary.BigEndian.PutUint32(w.bytes[1:], uint32(len(w.bytes)-headerBytes))
	return w.bytes
}

// read reads a message of one of the kinds that may come now.
func read(r io.Reader, may func(kind) bool) (message, error) {
	var header [headerBytes]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return nil, err
	}
	k, n := kind(header[0]), binary.BigEndian.Uint32(header[1:])
	most, known := longest[k]
	switch {
	case !known || !may(k):
		return nil, fmt.Errorf("%w: %d is no kind of message that may come here", errMessage, k)
	case int64(n) > int64(most):
		return nil, fmt.Errorf("%w: kind %d has %d bytes; want at most %d", errMessage, k, n, most)
	}
	payload := make([]byte, n)
	if _, err := io.ReadFull(r, payload); err == io.EOF {
		return nil, io.ErrUnexpectedEOF
	} else if err != nil {
		return nil, err
	}
	return parse(k, payload)
}

// errMessage is the error of bytes that are no message.
var errMessage = errors.New("not a message of this protocol")

// parse is the message of a payload.
func parse(k kind, payload []byte) (message, error) {
	r := &reader{bytes: payload}
	var m message
	switch k {
	case kindChallenge:
		if string(r.raw(len(magic))) != magic {
			r.bad = true
		}
		m = challenge{r.nonce()}
	case kindHello:
		h := hello{r.nonce(), r.nonce(), r.number(), r.number(), r.number(), r.number(), r.text(maxName), r.text(maxName)}
		r.bad = r.bad || h.refuses < 0 || h.refuses > 1
		m = h
	case kindWelcome:
		m = welcome{r.nonce()}
	case kindRefusal:
		m = refusal{r.text(MaxMessage)}
	case kindWaiting:
		m = waiting{r.text(MaxMessage)}
	case kindReady:
		m = ready{}
	case kindBeat:
		m = beat{}
	case kindPart:
		p := part{number: r.long(), rank: r.number(), total: r.number(), what: r.text(MaxWhat), data: r.data(partBytes)}
		r.bad = r.bad || p.total < 0 || p.total > MaxGather || len(p.data) > p.total
		m = p
	case kindFailed:
		f := failed{r.number(), r.number(), r.number(), r.text(MaxAction), r.text(MaxMessage)}
		r.bad = r.bad || f.Stage < -1 || f.MicroBatch < -1
		m = f
	case kindLost:
		m = lost{r.number(), r.text(MaxMessage)}
	case kindBye:
		m = bye{r.number()}
	}
	if r.bad || len(r.bytes) > 0 || m == nil {
		return nil, fmt.Errorf("%w: the %d bytes of kind %d are not what such a message has", errMessage, len(payload), k)
	}
	return m, nil
}

// writer appends what messages consist of.
type writer struct{ bytes []byte }

func (w *writer) raw(b []byte)  { w.bytes = append(w.bytes, b...) }
func (w *writer) number(n int)  { w.bytes = binary.BigEndian.AppendUint32(w.bytes, uint32(int32(n))) }
func (w *writer) text(s string) { w.number(len(s)); w.bytes = append(w.bytes, s...) }

// reader takes apart what a writer has put together. bad says that something was missing or wrong.
type reader struct {
	bytes []byte
	bad   bool
}

func (r *reader) raw(n int) []byte {
	if n < 0 || n > len(r.bytes) {
		r.bad = true
		return make([]byte, max(0, min(n, nonceBytes)))
	}
	b := r.bytes[:n]
	r.bytes = r.bytes[n:]
	return b
}

func (r *reader) nonce() (n nonce) {
	copy(n[:], r.raw(nonceBytes))
	return n
}

func (r *reader) number() int  { return int(int32(binary.BigEndian.Uint32(r.raw(4)))) }
func (r *reader) long() uint64 { return binary.BigEndian.Uint64(r.raw(8)) }

func (r *reader) data(most int) []byte {
	n := r.number()
	if n > most {
		r.bad = true
		return nil
	}
	return r.raw(n)
}

func (r *reader) text(most int) string {
	b := r.data(most)
	if !utf8.Valid(b) {
		r.bad = true
	}
	return string(b)
}
