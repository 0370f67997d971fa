package group

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// TestAFailureIsQueuedBeforeItIsKnown: rank 0 may know of a lost member and be gone before the others
// are told. They took rank 0 for the one that was lost.
func TestAFailureIsQueuedBeforeItIsKnown(t *testing.T) {
	for range 2000 {
		c := newControl(Config{Size: 3})
		here, there := net.Pipe()
		p := newPeer(1, here, c.cfg)
		c.peers[1] = p
		go c.end(&LostError{Rank: 2, Why: "it died"})
		<-c.first.failed
		p.mu.Lock()
		queued := len(p.queue)
		p.mu.Unlock()
		_, _ = here.Close(), there.Close()
		if queued != 1 {
			t.Fatalf("%d messages are queued; want 1", queued)
		}
	}
}

// TestWhatWasSaidBeforeAConnectionClosedIsRead: a member says why it has failed and ends. Nothing can be
// sent to it any more before that was read, and it was taken for one that died.
func TestWhatWasSaidBeforeAConnectionClosedIsRead(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for range 50 {
		there, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		here, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := there.Write(endFrame(1, &FailedError{Failure{Rank: 1, Message: "why"}}).encode()); err != nil {
			t.Fatal(err)
		}
		_ = there.Close()
		p := newPeer(1, here, Config{Rank: 0, Size: 2}.filled())
		for range 3 { // the first is answered by a reset
			p.send(frame{kind: kindBeat}.encode())
			go p.write()
			time.Sleep(time.Millisecond)
		}
		var got frame
		p.serve(func(f frame) error { got = f; return nil }, func(error) {})
		if got.kind != kindEnd {
			t.Fatalf("read %v", got)
		}
	}
}

// TestWhatIsQueuedArrivesBeforeTheEnd: a member ends a connection on which it has not read all. The kernel
// answers that with a reset, which threw away what was still on its way to the other side: the reason.
func TestWhatIsQueuedArrivesBeforeTheEnd(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for range 10 {
		there, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		here, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := there.Write(make([]byte, 64<<10)); err != nil { // is not read
			t.Fatal(err)
		}
		p := newPeer(1, here, Config{Rank: 0, Size: 2}.filled())
		for range 128 { // more than is on its way
			p.send(part{total: partBytes, data: make([]byte, partBytes)}.frame().encode())
		}
		p.send(endFrame(0, &LostError{Rank: 2, Why: "it died"}).encode())
		p.stop()
		go p.serve(func(frame) error { return nil }, func(error) {})
		time.Sleep(10 * time.Millisecond)
		var last frame
		for {
			f, err := readFrame(there, maxBody)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("after kind %d: %v", last.kind, err)
			}
			last = f
		}
		if last.kind != kindEnd {
			t.Errorf("the last frame is of kind %d", last.kind)
		}
		there.Close()
	}
}

// TestRank0Judges: the end of a connection to rank 0 counts before broken connections between others, which
// come first, and a failure before both.
func TestRank0Judges(t *testing.T) {
	ended, reported := &LostError{Rank: 2, Why: "its control connection was closed"}, &LostError{Rank: 1, Why: "a connection broke"}
	failed := &FailedError{Failure{Rank: 1, Message: "why"}}
	for _, row := range []struct {
		later func(c *control)
		want  error
	}{
		{func(c *control) { c.end(ended) }, ended},
		{func(c *control) { c.judge(failed) }, failed},
		{func(c *control) {}, reported},
	} {
		c := newControl(Config{Size: 3}.filled())
		c.judge(reported)
		time.AfterFunc(20*time.Millisecond, func() { row.later(c) })
		<-c.first.failed
		if err := c.first.get(); err != row.want {
			t.Errorf("got %v; want %v", err, row.want)
		}
	}
}
