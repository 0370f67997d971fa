package launch

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// A job may be on several machines, its nodes, each of which has a launcher. The launchers meet at that of
// node 0 before each start of the job, so that a job can go on without a node that has gone, and with
// one that has come:
//
//	every node   hello ─►                    report ─►                 hello ─► ...
//	node 0               ─► start    ─► end            ─► again, over
//
// Where the command lines of launchers differ, or one of them refuses its own, nothing starts.

// Nodes describes a job on several nodes. Processes, Least and Most have to be the same on all.
type Nodes struct {
	Address     string // host:port at which node 0 listens
	Token       string // what launchers prove to know
	Node        int    // this one, from 0
	Processes   int    // on each
	Least, Most int    // how many nodes there may be
	// Refusal is why this node starts nothing, such as what is wrong with its command line. Empty: it
	// takes part. All are told, and nothing starts.
	Refusal string
	// Fits reports whether the job can be started on so many nodes. Nil: on any number from Least to Most.
	Fits func(nodes int) bool
	// Restarts is how often the job is started again after a failure. That of node 0 counts.
	Restarts int
	// Saves is whether processes save what they have done when they get SIGTERM. If so, the job is
	// started again for a node that comes later.
	Saves bool
	// Wait is how long a start waits for more nodes than Least.
	Wait time.Duration
	// Timeout is how long it waits for Least nodes.
	Timeout time.Duration
}

// message is what launchers tell each other, as a line of JSON.
type message struct {
	Kind                   string
	Nonce                  []byte `json:",omitempty"` // of a challenge and a hello
	Proof                  []byte `json:",omitempty"` // of a hello and a welcome
	Node                   int    `json:",omitempty"` // of a hello, with what that node says all have
	Processes, Least, Most int    `json:",omitempty"`
	Place                  *Place `json:",omitempty"` // of a start
	Text                   string `json:",omitempty"` // why; of a hello, why that node starts nothing
	Code                   int    `json:",omitempty"` // exit code
	Later                  bool   `json:",omitempty"` // of a refusal: another call may be let in
}

// Usage is the exit code of a process whose command line is wrong, or what that names. Such a job is
// not started again.
const Usage = 2

// Hopeless is said of the end of such a process where a failure would have been a reason to start again.
const Hopeless = "; not started again, as its command line or data would be refused again"

// Kinds of messages.
const (
	challenge   = "challenge"   // from node 0, with a random number
	hello       = "hello"       // the answer, which proves that the node knows the token
	welcome     = "welcome"     // which proves it of node 0
	refused     = "refused"     // Text says why; the connection ends
	start       = "start"       // the job starts, with this node if there is a Place
	interrupt   = "interrupt"   // to end in order: more nodes are there
	abandon     = "abandon"     // to end: another node has failed, as Text says
	succeeded   = "succeeded"   // a report: all processes have exited with 0
	failure     = "failure"     // a report: Text and Code say how
	interrupted = "interrupted" // a report: by a signal to the launcher
	stopped     = "stopped"     // a report: as interrupt asks
	again       = "again"       // the job is started again, as Text says
	over        = "over"        // the job is over; it failed if there is a Text
)

// MaxNodes is the most nodes of a job.
const MaxNodes = 4096

// longestMessage is the most bytes of a message.
const longestMessage = 64 << 10

// answers is how long the other side may take to answer in a handshake and to take a message.
const answers = 5 * time.Second

// wire is a connection between launchers.
type wire struct {
	net.Conn
	lines *json.Decoder
	limit *io.LimitedReader
}

func newWire(c net.Conn) *wire {
	if tcp, ok := c.(*net.TCPConn); ok { // one whose machine has gone is found in ten seconds
		_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: time.Second, Count: 5})
	}
	limit := &io.LimitedReader{R: c, N: longestMessage}
	return &wire{c, json.NewDecoder(limit), limit}
}

func (w *wire) write(m message) error {
	if err := w.SetWriteDeadline(time.Now().Add(answers)); err != nil {
		return err
	}
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	_, err = w.Conn.Write(append(text, '\n'))
	return err
}

// read reads a message, which has to be of one of these kinds.
func (w *wire) read(kinds ...string) (m message, err error) {
	w.limit.N = longestMessage
	if err := w.lines.Decode(&m); err != nil {
		return m, err
	}
	for _, k := range kinds {
		if m.Kind == k {
			return m, nil
		}
	}
	return m, fmt.Errorf("launch: a message %q where %q was expected", m.Kind, kinds)
}

// proof shows that a side knows the token, which is never sent, and that m is what it says.
func proof(token, side string, theirs, mine []byte, m message) []byte {
	m.Proof = nil
	said, _ := json.Marshal(m) // which has no error for what message has
	h := hmac.New(sha256.New, []byte(token))
	fmt.Fprintf(h, "penstock launch, %s\n%x\n%x\n%s", side, theirs, mine, said)
	return h.Sum(nil)
}

func nonce() []byte {
	n := make([]byte, 32)
	rand.Read(n) // which never fails
	return n
}

// errToken is the error of a launcher that has another token.
var errToken = errors.New("launch: it does not know the job's token; want the same PENSTOCK_TOKEN on all nodes")

// admit does node 0's side of a handshake up to the hello.
func (w *wire) admit(token string) (m message, welcomed message, err error) {
	if err := w.SetReadDeadline(time.Now().Add(answers)); err != nil {
		return m, welcomed, err
	}
	mine := nonce()
	if err := w.write(message{Kind: challenge, Nonce: mine}); err != nil {
		return m, welcomed, err
	}
	if m, err = w.read(hello); err != nil {
		return m, welcomed, err
	}
	if !hmac.Equal(m.Proof, proof(token, hello, mine, m.Nonce, m)) {
		return m, welcomed, errToken
	}
	return m, message{Kind: welcome, Proof: proof(token, welcome, m.Nonce, mine, message{})}, w.SetReadDeadline(time.Time{})
}

// introduce does the other side.
func (w *wire) introduce(token string, me message) error {
	if err := w.SetReadDeadline(time.Now().Add(answers)); err != nil {
		return err
	}
	theirs, err := w.read(challenge)
	if err != nil {
		return err
	}
	me.Kind, me.Nonce = hello, nonce()
	me.Proof = proof(token, hello, theirs.Nonce, me.Nonce, me)
	if err := w.write(me); err != nil {
		return err
	}
	m, err := w.read(welcome, refused)
	switch {
	case err != nil:
		return err
	case m.Kind == refused:
		return &EndError{m.Text, m.Code, m.Later}
	case !hmac.Equal(m.Proof, proof(token, welcome, me.Nonce, theirs.Nonce, message{})):
		return errToken
	}
	return w.SetReadDeadline(time.Time{})
}

// EndError is why node 0 has ended a job, or does not let a node take part.
type EndError struct {
	Text  string
	Code  int  // exit code for it; 0 or less where the job gives none
	Later bool // the node may be let in when it calls again
}

func (e *EndError) Error() string { return "launch: " + e.Text }

// ExitCode is the exit code of a launcher that ends for this reason.
func (e *EndError) ExitCode() int { return e.Code }
