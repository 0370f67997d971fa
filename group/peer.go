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

// peer is the control connection to another member. It sends a heartbeat when it has nothing else to send.
type peer struct {
	rank int
	who  greeting // known at rank 0 only
	conn net.Conn
	cfg  Config

	mu    sync.Mutex
	queue [][]byte      // frames
	more  chan struct{} // of capacity one: the queue is not empty
	done  chan struct{} // closed by stop
	once  sync.Once
}

func newPeer(rank int, conn net.Conn, c Config) *peer {
	return &peer{rank: rank, conn: conn, cfg: c, more: make(chan struct{}, 1), done: make(chan struct{})}
}

// Read reads from the connection and gives up after Config.Silence. It waits in turns, and each
// turn counts as one heartbeat, even if this process was stopped meanwhile. So after a stop of this
// process, or of the whole job, Read gets the frames that have arrived, and the others have time to
// send.
func (p *peer) Read(b []byte) (int, error) {
	turn := p.cfg.heartbeat()
	for quiet := turn; ; quiet += turn {
		if err := p.conn.SetReadDeadline(time.Now().Add(turn)); err != nil {
			return 0, err
		}
		if closed(p.done) { // stop sets an earlier deadline afterwards
			return 0, net.ErrClosed
		}
		n, err := p.conn.Read(b)
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) || quiet >= p.cfg.Silence {
			return n, err
		}
	}
}

func (p *peer) send(frame []byte) {
	p.mu.Lock()
	p.queue = append(p.queue, frame)
	p.mu.Unlock()
	notify(p.more)
}

// serve sends the queue and handles each frame that arrives, until the connection ends, handle
// fails or stop is called. Then it calls ended with the reason, and closes the connection.
//
// If data is unread at a close, the kernel sends a reset. The reset may discard frames on their way
// to the other side, such as the reason for the end. So this side first sends the queue and a FIN.
// Then it reads until the other side has closed, unless that side is silent. Each takes at most
// Config.Silence.
func (p *peer) serve(handle func(frame) error, ended func(error)) {
	var writer sync.WaitGroup
	writer.Go(p.write)
	in := bufio.NewReader(p)
	var err error
	for err == nil {
		var f frame
		if f, err = readFrame(in, maxBody); err == nil {
			err = handle(f)
		}
	}
	ended(err)
	p.stop()
	writer.Wait()
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		_ = p.conn.SetReadDeadline(time.Now().Add(p.cfg.Silence))
		_, _ = io.Copy(io.Discard, p.conn)
	}
	_ = p.conn.Close()
}

// write sends the queue until stop is called or a write fails. Writes have no time limit before
// stop. After a failed write serve still reads the frames that the other side has sent.
func (p *peer) write() {
	tick := time.NewTicker(p.cfg.heartbeat())
	defer tick.Stop()
	for stopped := false; ; {
		p.mu.Lock()
		queue := p.queue
		p.queue = nil
		p.mu.Unlock()
		for _, b := range queue {
			if _, err := p.conn.Write(b); err != nil {
				return
			}
		}
		if stopped {
			if tcp, ok := p.conn.(*net.TCPConn); ok {
				_ = tcp.CloseWrite()
			}
			return
		}
		select {
		case <-p.more:
		case <-tick.C:
			p.send(frame{kind: kindBeat}.encode())
		case <-p.done:
			stopped = true
		}
	}
}

// stop ends the connection after the queue is sent.
func (p *peer) stop() {
	p.once.Do(func() {
		close(p.done)
		_ = p.conn.SetWriteDeadline(time.Now().Add(p.cfg.Silence))
		_ = p.conn.SetReadDeadline(time.Now())
	})
}

func (p *peer) why(err error) string {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Sprintf("nothing was heard of it for %v", p.cfg.Silence)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed):
		return "its control connection was closed"
	}
	return "its control connection has failed: " + err.Error()
}
