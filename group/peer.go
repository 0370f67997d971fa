package group

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// peer is the control connection to another member. It says that this member is alive whenever it
// has nothing else to say.
type peer struct {
	rank      int
	who       hello // of the other side, at rank 0
	conn      net.Conn
	in        io.Reader
	heartbeat time.Duration
	silence   time.Duration
	ending    bool // it knows that the group has failed; the control's lock guards it

	mu    sync.Mutex
	queue []outgoing
	more  chan struct{} // has room for one: something was queued
	done  chan struct{} // closed by stop
	once  sync.Once
}

// outgoing is a frame that is to be sent, or somebody to be told that all before it were.
type outgoing struct {
	frame []byte
	sent  chan struct{}
}

func newPeer(rank int, conn net.Conn, c Config) *peer {
	return &peer{
		rank: rank, conn: conn, in: bufio.NewReaderSize(&patient{conn, c.Silence}, partBytes),
		heartbeat: c.Heartbeat, silence: c.Silence, more: make(chan struct{}, 1), done: make(chan struct{}),
	}
}

// patient reads from a connection and gives up after a silence. It waits in short turns, and a turn counts
// no longer than it was to last: where this process, or all of the job, was stopped for longer than the
// silence, what has come meanwhile is still read, and others have time to go on.
type patient struct {
	conn    net.Conn
	silence time.Duration
}

func (p *patient) Read(b []byte) (int, error) {
	turn := max(p.silence/5, 1)
	for quiet := time.Duration(0); ; quiet += turn {
		if err := p.conn.SetReadDeadline(time.Now().Add(turn)); err != nil {
			return 0, err
		}
		n, err := p.conn.Read(b)
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) || quiet+turn >= p.silence {
			return n, err
		}
	}
}

// send queues a message. It does not block.
func (p *peer) send(m message) { p.enqueue(outgoing{frame: frame(m)}) }

func (p *peer) enqueue(o outgoing) {
	p.mu.Lock()
	p.queue = append(p.queue, o)
	p.mu.Unlock()
	select {
	case p.more <- struct{}{}:
	default:
	}
}

// flush waits until what is queued was sent, the connection has ended or the time is over. It waits in short turns, so that
// a process that was stopped for longer still sends what it has.
func (p *peer) flush(timeout time.Duration) {
	const turns = 10
	sent := make(chan struct{})
	p.enqueue(outgoing{sent: sent})
	for range turns {
		select {
		case <-sent:
			return
		case <-p.done:
			return
		case <-time.After(timeout / turns):
		}
	}
}

// write sends what is queued until the connection ends. If nothing more can be sent, what the other
// side has sent before it closed the connection, such as why it has failed, is still to be read.
func (p *peer) write() {
	defer p.stop()
	if p.writeAll() != nil {
		select {
		case <-p.done:
		case <-time.After(p.silence):
		}
	}
}

// writeAll sends what is queued. Its error is nil if the connection was ended on this side.
func (p *peer) writeAll() error {
	tick := time.NewTicker(p.heartbeat)
	defer tick.Stop()
	for {
		p.mu.Lock()
		queue := p.queue
		p.queue = nil
		p.mu.Unlock()
		for _, o := range queue {
			if o.sent != nil {
				close(o.sent)
				continue
			}
			if err := p.conn.SetWriteDeadline(time.Now().Add(p.silence)); err != nil {
				return err
			}
			if _, err := p.conn.Write(o.frame); err != nil {
				return err
			}
		}
		select {
		case <-p.more:
		case <-tick.C:
			p.send(beat{})
		case <-p.done:
			return nil
		}
	}
}

// read gives the messages that come, of kinds that may, to a function, until the connection ends.
// It returns why it has ended.
func (p *peer) read(may func(kind) bool, f func(message) error) error {
	defer p.stop()
	for {
		m, err := read(p.in, may)
		if err == nil {
			err = f(m)
		}
		if err != nil {
			return err
		}
	}
}

// stop ends the connection.
func (p *peer) stop() {
	p.once.Do(func() {
		close(p.done)
		_ = p.conn.Close()
	})
}

// gone reports whether the connection has ended.
func (p *peer) gone() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// why is the end of a connection in words.
func (p *peer) why(err error) string {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Sprintf("nothing was heard of it for %v", p.silence)
	case errors.Is(err, errMessage):
		return "its control connection has sent what is " + err.Error()
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed):
		return "its control connection was closed"
	}
	return "its control connection has failed: " + err.Error()
}
