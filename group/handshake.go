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

const protocol = "penstock 4" // the version of the frames

// greeting is the body of the frames of a handshake. Both sides of a control connection prove that they know
// the job's token, which is never sent: each answers the other's random number. Only a member's greeting says
// which process it is.
type greeting struct {
	Protocol, Nonce string
	Proof           []byte
	Size, PID       int
	Host, Libtorch  string
}

// introduction is the greeting of this process, without proof.
func introduction(c Config) greeting {
	host, _ := os.Hostname()
	const most = 64
	return greeting{Protocol: protocol, Nonce: rand.Text(), Size: c.Size, PID: os.Getpid(),
		Host: cut(host, most), Libtorch: cut(torch.Version(), most)}
}

// process says which process it is.
func (g greeting) process() string { return fmt.Sprintf("pid %d on %s", g.PID, g.Host) }

// proof is the HMAC-SHA256 under the token of the other side's random number and the greeting of a rank.
func (g greeting) proof(token string, rank int, theirs string) []byte {
	g.Proof = nil
	text, _ := json.Marshal(g) // it has no error
	h := hmac.New(sha256.New, []byte(token))
	fmt.Fprintf(h, "%d %q %s", rank, theirs, text)
	return h.Sum(nil)
}

// errToken is the error of a side that has another token.
var errToken = errors.New("it does not know the job's token")

// challengeMember does rank 0's side up to the member's greeting. If the error is nil, the greeting comes
// from a process that knows the token. ok is the answer.
func challengeMember(conn net.Conn, c Config) (rank int, who greeting, ok frame, err error) {
	mine := greeting{Protocol: protocol, Nonce: rand.Text()}
	rank, err = exchange(conn, c, jsonFrame(kindGreeting, 0, mine), &who)
	if err == nil && !hmac.Equal(who.Proof, who.proof(c.Token, rank, mine.Nonce)) {
		err = errToken
	}
	mine.Proof = mine.proof(c.Token, 0, who.Nonce)
	return rank, who, jsonFrame(kindGreeting, 0, mine), err
}

// introduce does a member's side. Its error is a *refusedError if rank 0 has given a reason.
func introduce(conn net.Conn, c Config, me greeting) error {
	var asks, answers greeting
	if _, err := exchange(conn, c, frame{}, &asks); err != nil {
		return err
	}
	me.Proof = me.proof(c.Token, c.Rank, asks.Nonce)
	_, err := exchange(conn, c, jsonFrame(kindGreeting, c.Rank, me), &answers)
	if err == nil && !hmac.Equal(answers.Proof, answers.proof(c.Token, 0, me.Nonce)) {
		err = errToken
	}
	return err
}

// exchange sends a frame, if it has a kind, and reads the greeting that answers it.
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
