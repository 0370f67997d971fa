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
	"time"

	"penstock.example/torch"
)

const protocol = "penstock 5" // the version of the frames

// greeting is the body of the frames of a handshake. Both sides of a control connection prove that they know
// the job's token, which is never sent: each answers the other's random number. Only members fill the fields
// from Size on.
type greeting struct {
	Protocol, Nonce string
	Proof           []byte
	Size, PID       int
	Host, Libtorch  string
}

// introduction returns this process's greeting, without its proof.
func introduction(c Config) greeting {
	host, _ := os.Hostname()
	return greeting{Protocol: protocol, Nonce: rand.Text(), Size: c.Size, PID: os.Getpid(),
		Host: cut(host, 64), Libtorch: cut(torch.Version(), 64)}
}

func (g greeting) process() string { return fmt.Sprintf("pid %d on %s", g.PID, g.Host) }

// proof returns the HMAC-SHA256, keyed by the token, of a rank, the other side's random number and g.
func (g greeting) proof(token string, rank int, theirs string) []byte {
	g.Proof = nil
	text, _ := json.Marshal(g)
	h := hmac.New(sha256.New, []byte(token))
	fmt.Fprintf(h, "%d %q %s", rank, theirs, text)
	return h.Sum(nil)
}

var errToken = errors.New("it does not know the job's token")

// challengeMember does rank 0's side of a handshake, except for its last frame, ok. If the error is nil, the
// member knows the token.
func challengeMember(conn net.Conn, c Config) (rank int, who greeting, ok frame, err error) {
	mine := greeting{Protocol: protocol, Nonce: rand.Text()}
	rank, err = exchange(conn, c, jsonFrame(kindGreeting, 0, mine), &who)
	if err == nil && !hmac.Equal(who.Proof, who.proof(c.Token, rank, mine.Nonce)) {
		err = errToken
	}
	mine.Proof = mine.proof(c.Token, 0, who.Nonce)
	return rank, who, jsonFrame(kindGreeting, 0, mine), err
}

// introduce does a member's side of a handshake. The error is a *refusedError if rank 0 has given a reason.
func introduce(conn net.Conn, c Config, me greeting) error {
	var challenge, answer greeting
	if _, err := exchange(conn, c, frame{}, &challenge); err != nil {
		return err
	}
	me.Proof = me.proof(c.Token, c.Rank, challenge.Nonce)
	_, err := exchange(conn, c, jsonFrame(kindGreeting, c.Rank, me), &answer)
	if err == nil && !hmac.Equal(answer.Proof, answer.proof(c.Token, 0, me.Nonce)) {
		err = errToken
	}
	return err
}

// exchange sends a frame, if it has a kind, and reads the greeting of the other side.
func exchange(conn net.Conn, c Config, f frame, to *greeting) (rank int, err error) {
	if err := conn.SetDeadline(time.Now().Add(c.Silence)); err != nil {
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
	case f.kind == kindEnd:
		return 0, f.reason()
	case f.kind != kindGreeting:
		return 0, errFrame
	}
	if err := f.decode(to); err != nil {
		return 0, err
	}
	if to.Protocol != protocol {
		return 0, fmt.Errorf("%w: %q, and this is %q", errFrame, to.Protocol, protocol)
	}
	return f.rank, conn.SetDeadline(time.Time{})
}
