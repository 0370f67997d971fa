package group

import (
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
		go c.end(&LostError{Rank: 2, Why: "it died"}, nil)
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
		if _, err := there.Write(frame(failed{Rank: 1, Stage: -1, MicroBatch: -1, Message: "why"})); err != nil {
			t.Fatal(err)
		}
		_ = there.Close()
		p := newPeer(1, here, Config{Rank: 0, Size: 2}.filled())
		for range 3 { // the first is answered by a reset
			p.send(beat{})
			go p.write()
			time.Sleep(time.Millisecond)
		}
		var got message
		_ = p.read(func(kind) bool { return true }, func(m message) error { got = m; return nil })
		if got == nil || got.kind() != kindFailed {
			t.Fatalf("read %v", got)
		}
	}
}

// TestNothingIsSaidAfterAWait: what a wait says while it ends is said before it has ended. It was written to the log of a
// caller who had the result of Join already.
func TestNothingIsSaidAfterAWait(t *testing.T) {
	says, said := make(chan struct{}), false
	ended := whenLong(func() {
		close(says)
		time.Sleep(20 * time.Millisecond)
		said = true
	})
	<-says
	if ended(); !said {
		t.Error("it was still being said")
	}
}
