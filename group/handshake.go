package group

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"penstock.example/torch"
	"time"
)

// Both sides of a control connection prove that they know the job's token, which is never sent. Each answers
// the other's random number with its HMAC-SHA256 under the token.

const nonceBytes = 32

const (
	protocol  = "penstock 3" // the version of the frames
	lobbySide = "penstock lobby"
)

type challenge struct {
	Protocol string
	Nonce    []byte
}

type hello struct {
	Nonce, Proof   []byte
	Size, PID      int
	Host, Libtorch string
}

// String says which process it is.
func (h hello) String() string { return fmt.Sprintf("pid %d on %s", h.PID, h.Host) }

// introduction is the hello of this process, without proof.
func introduction(c Config) hello {
	name, err := os.Hostname()
	if err != nil {
		name = "?"
	}
	const most = 64
	return hello{Size: c.Size, PID: os.Getpid(), Host: cut(name, most), Libtorch: cut(torch.Version(), most)}
}

type welcome struct{ Proof []byte }

// proof shows that a side knows the token, and the content of its hello.
func proof(token, side string, theirs, mine []byte, content any) []byte {
	text, err := json.Marshal(content)
	if err != nil {
		panic(err) // hello has no error
	}
	h := hmac.New(sha256.New, []byte(token))
	for _, b := range [][]byte{[]byte(side), theirs, mine, text} {
		h.Write(b)
	}
	return h.Sum(nil)
}

// proofOf returns the proof of a hello.
func (h hello) proofOf(token string, rank int, theirs []byte) []byte {
	h.Proof = nil
	return proof(token, fmt.Sprintf("penstock rank %d", rank), theirs, h.Nonce, h)
}

func newNonce() []byte {
	n := make([]byte, nonceBytes)
	rand.Read(n) // it never fails
	return n
}

// errToken is the error of a member that has another token.
var errToken = errors.New("it does not know the job's token")

// refusedError is the reason why rank 0 has refused a member.
type refusedError struct{ text string }

func (e *refusedError) Error() string { return e.text }

// challengeMember does rank 0's side up to the hello. If the error is nil, the hello comes from a process
// that knows the token. ok is the answer.
func challengeMember(conn net.Conn, token string, within time.Duration) (rank int, h hello, ok frame,
	err error) {
	mine := newNonce()
	rank, err = exchange(conn, within, jsonFrame(kindChallenge, 0, challenge{protocol, mine}), kindHello, &h)
	if err == nil && (len(h.Nonce) != nonceBytes || !hmac.Equal(h.Proof, h.proofOf(token, rank, mine))) {
		err = errToken
	}
	return rank, h, jsonFrame(kindWelcome, 0, welcome{proof(token, lobbySide, h.Nonce, mine, nil)}), err
}

// introduce does a member's side. Its error is a *refusedError if rank 0 has given a reason.
func introduce(conn net.Conn, token string, rank int, me hello, within time.Duration) error {
	var theirs challenge
	if _, err := exchange(conn, within, frame{}, kindChallenge, &theirs); err != nil {
		return err
	}
	if theirs.Protocol != protocol || len(theirs.Nonce) != nonceBytes {
		return fmt.Errorf("%w: %q, and this is %q", errFrame, theirs.Protocol, protocol)
	}
	me.Nonce = newNonce()
	me.Proof = me.proofOf(token, rank, theirs.Nonce)
	var ok welcome
	_, err := exchange(conn, within, jsonFrame(kindHello, rank, me), kindWelcome, &ok)
	if err == nil && !hmac.Equal(ok.Proof, proof(token, lobbySide, me.Nonce, theirs.Nonce, nil)) {
		err = errToken
	}
	return err
}

// exchange sends a frame, if it has a kind, and reads the answer.
func exchange(conn net.Conn, within time.Duration, f frame, k kind, to any) (rank int, err error) {
	if err := conn.SetDeadline(time.Now().Add(within)); err != nil {
		return 0, err
	}
	if f.kind != 0 {
		if _, err := conn.Write(f.encode()); err != nil {
			return 0, err
		}
	}
	switch f, err = readFrame(conn, maxHandshake); {
	case err != nil:
		return 0, err
	case f.kind == kindRefused:
		return 0, &refusedError{string(f.body)}
	case f.kind != k:
		return 0, errFrame
	}
	return f.rank, errors.Join(f.decode(to), conn.SetDeadline(time.Time{}))
}
