package group

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// Both sides of a control connection prove that they know the job's token, which is never sent:
// each answers the other's random number with HMAC-SHA256 of it under the token.

// proof is what shows that a side knows the token. said is what this side says of itself.
func proof(token string, side string, theirs, mine nonce, said []byte) (p nonce) {
	h := hmac.New(sha256.New, []byte(token))
	h.Write([]byte(side))
	h.Write(theirs[:])
	h.Write(mine[:])
	h.Write(said)
	copy(p[:], h.Sum(nil))
	return p
}

func newNonce() (n nonce) {
	_, _ = rand.Read(n[:]) // it never fails
	return n
}

// proven is what a hello proves to come from a member.
func (m hello) proven(token string, theirs nonce) nonce {
	said := m
	said.proof = nonce{}
	return proof(token, "penstock member", theirs, m.nonce, frame(said))
}

// challengeMember does rank 0's side up to the hello, which comes from one who knows the token if
// the error is nil. The connection stays with the caller.
func challengeMember(conn net.Conn, token string, within time.Duration) (hello, welcome, error) {
	if err := conn.SetDeadline(time.Now().Add(within)); err != nil {
		return hello{}, welcome{}, err
	}
	mine := newNonce()
	if _, err := conn.Write(frame(challenge{mine})); err != nil {
		return hello{}, welcome{}, err
	}
	m, err := read(conn, func(k kind) bool { return k == kindHello })
	if err != nil {
		return hello{}, welcome{}, err
	}
	h := m.(hello)
	if want := h.proven(token, mine); !hmac.Equal(want[:], h.proof[:]) {
		return h, welcome{}, errToken
	}
	return h, welcome{proof(token, "penstock rank 0", h.nonce, mine, nil)}, conn.SetDeadline(time.Time{})
}

// errToken is the error of a member that has another token.
var errToken = errors.New("it does not know the job's token")

// refusedError is what rank 0 has refused a member with.
type refusedError struct{ text string }

func (e *refusedError) Error() string { return e.text }

// introduce does a member's side. Its error is a *refusedError if rank 0 has said why.
func introduce(conn net.Conn, token string, me hello, within time.Duration) error {
	if err := conn.SetDeadline(time.Now().Add(within)); err != nil {
		return err
	}
	m, err := read(conn, func(k kind) bool { return k == kindChallenge || k == kindRefusal })
	if err != nil {
		return err
	}
	if r, ok := m.(refusal); ok {
		return &refusedError{r.text}
	}
	theirs := m.(challenge).nonce
	me.nonce = newNonce()
	me.proof = me.proven(token, theirs)
	if _, err := conn.Write(frame(me)); err != nil {
		return err
	}
	m, err = read(conn, func(k kind) bool { return k == kindWelcome || k == kindRefusal })
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("it has ended the connection: %w", err)
	}
	if err != nil {
		return err
	}
	if r, ok := m.(refusal); ok {
		return &refusedError{r.text}
	}
	if want := proof(token, "penstock rank 0", me.nonce, theirs, nil); !hmac.Equal(want[:], proofOf(m)) {
		return errToken
	}
	return conn.SetDeadline(time.Time{})
}

func proofOf(m message) []byte {
	p := m.(welcome).proof
	return p[:]
}
