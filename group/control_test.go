package group

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock.example/internal/must"
)

// TestAFailureIsQueuedBeforeItIsKnown: rank 0 may know of a lost member and be gone before the others
// are told. They took rank 0 for the one that was lost.
func TestAFailureIsQueuedBeforeItIsKnown(t *testing.T) {
	for range 2000 {
		c := newControl(Config{Size: 3}.withDefaults())
		here, there := net.Pipe()
		p := newPeer(1, here, c.cfg)
		c.peers[1] = p
		go c.end(&LostError{Rank: 2, Why: "it died"})
		<-c.failure.failed
		p.mu.Lock()
		queued := len(p.queue)
		p.mu.Unlock()
		_, _ = here.Close(), there.Close()
		if queued != 1 {
			t.Fatalf("%d messages are queued; want 1", queued)
		}
	}
}

// connection is a connection of this process with itself.
func connection(t *testing.T) (here, there net.Conn) {
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	there = must.Get(net.Dial("tcp", listener.Addr().String()))(t)
	return must.Get(listener.Accept())(t), there
}

// TestWhatWasSaidBeforeAConnectionClosedIsRead: a member says why it has failed and ends. Nothing can be
// sent to it any more before that was read, and it was taken for one that died.
func TestWhatWasSaidBeforeAConnectionClosedIsRead(t *testing.T) {
	for range 50 {
		here, there := connection(t)
		must.Get(there.Write(endFrame(1, &FailedError{Rank: 1, Message: "why"}).encode()))(t)
		_ = there.Close()
		p := newPeer(1, here, Config{Rank: 0, Size: 2}.withDefaults())
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
// answers that with a reset, which threw away what was still on its way to the other side: the reason. A side
// that was slow to read, on a busy machine, did not get it either.
func TestWhatIsQueuedArrivesBeforeTheEnd(t *testing.T) {
	for _, slow := range []time.Duration{0, 10, 20, 1500} { // milliseconds
		here, there := connection(t)
		must.Get(there.Write(make([]byte, 64<<10)))(t) // is not read
		p := newPeer(1, here, Config{Rank: 0, Size: 2}.withDefaults())
		for range 128 { // more than is on its way
			p.send(jsonFrame(kindPart, 0, part{Data: make([]byte, 64<<10)}).encode())
		}
		p.send(endFrame(0, &LostError{Rank: 2, Why: "it died"}).encode())
		p.stop()
		go p.serve(func(frame) error { return nil }, func(error) {})
		time.Sleep(slow * time.Millisecond)
		var last frame
		for {
			f, err := readFrame(there, maxBody)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("after kind %d: %v", last.kind, err)
			}
			if f.kind != kindBeat {
				last = f
			}
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
	ended, reported := &LostError{Rank: 2, Why: "its control connection was closed"},
		&LostError{Rank: 1, Why: "a connection broke"}
	failed := &FailedError{Rank: 1, Message: "why"}
	for _, row := range []struct {
		later func(c *control)
		want  error
	}{
		{func(c *control) { c.end(ended) }, ended},
		{func(c *control) { c.judge(failed) }, failed},
		{func(c *control) {}, reported},
	} {
		c := newControl(Config{Size: 3}.withDefaults())
		c.judge(reported)
		time.AfterFunc(20*time.Millisecond, func() { row.later(c) })
		<-c.failure.failed
		if err := c.failure.get(); err != row.want {
			t.Errorf("got %v; want %v", err, row.want)
		}
	}
}

// TestAnEndedGatherCounts: a member that has the result of a gather may fail at once, or leave, or its
// user may have given up meanwhile. Another member that looks only then has the result as well, every
// time.
func TestAnEndedGatherCounts(t *testing.T) {
	for range 200 {
		ctx, cancel := context.WithCancel(context.Background())
		var g *gathers
		g = newGathers(2, newOutcome(), nil, func(mine part) error {
			g.failure.set(&FailedError{Rank: 1}, nil)
			close(g.closing)
			cancel()
			return cmp.Or(g.add(0, mine), g.add(1, part{What: "names"}))
		})
		all, err := g.gather(ctx, part{What: "names"})
		if err != nil || len(all) != 2 {
			t.Fatalf("got %v, %v; want the bytes of both", all, err)
		}
	}
}

// TestAFailureCountsBeforeTheEnd: who leaves a group that has failed hears why, every time.
func TestAFailureCountsBeforeTheEnd(t *testing.T) {
	for range 200 {
		c, why := newControl(Config{Size: 2}), &FailedError{Rank: 1}
		c.gathers.share = func(part) error {
			c.failure.set(why, nil)
			close(c.gathers.closing)
			return nil
		}
		_, gathered := c.gathers.gather(context.Background(), part{})
		sent := (&tensorTransport{c: c}).reportBroken(1, errors.New("reset"))
		if !errors.Is(gathered, why) || !errors.Is(sent, why) {
			t.Fatalf("a gather: %v, a transfer: %v; want %v", gathered, sent, why)
		}
	}
}

// TestWhoIsToBlameWhileJoining: where connections for tensors cannot be opened, another member may have
// been lost, of which the others hear a moment later. They blamed themselves.
func TestWhoIsToBlameWhileJoining(t *testing.T) {
	open := func(c *control) error {
		c.board.Close() // so that Gloo fails at once
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := openTransport(ctx, c, net.IPv4(127, 0, 0, 1))
		return err
	}
	c, lost := newControl(Config{Size: 3, Rank: 1}.withDefaults()), &LostError{Rank: 2, Why: "it died"}
	time.AfterFunc(20*time.Millisecond, func() { c.failure.set(lost, nil) })
	if err := open(c); !errors.Is(err, lost) {
		t.Errorf("got %v; want %v", err, lost)
	}
	if err := open(newControl(Config{Size: 3, Rank: 1}.withDefaults())); err == nil || errors.Is(err, lost) {
		t.Errorf("where nobody is lost: %v; want that of Gloo", err)
	}
}

// stopped is a connection to a process that was stopped for a while: a read ends late, without what has
// come meanwhile.
type stopped struct {
	net.Conn
	stops int // reads that end so
	late  time.Duration
	reads int
}

func (c *stopped) SetReadDeadline(time.Time) error { return nil }

func (c *stopped) Read(b []byte) (int, error) {
	if c.reads++; c.reads <= c.stops {
		time.Sleep(c.late)
		return 0, os.ErrDeadlineExceeded
	}
	return copy(b, "beat"), nil
}

// A process that was stopped itself, for longer than the silence, reads what others have sent. It gives
// up on those that send nothing in a whole silence of its own time.
func TestStoppedProcessesHearOthers(t *testing.T) {
	const silence = 20 * time.Millisecond
	var b [8]byte
	c := &stopped{stops: 1, late: 3 * silence}
	if n, err := newPeer(1, c, Config{Silence: silence}).Read(b[:]); n != 4 || err != nil {
		t.Errorf("after a stop: %d bytes, %v", n, err)
	}
	c = &stopped{stops: 1000}
	if n, err := newPeer(1, c, Config{Silence: silence}).Read(b[:]); n != 0 ||
		!errors.Is(err, os.ErrDeadlineExceeded) || c.reads != 5 {
		t.Errorf("of a silence: %d bytes, %v after %d reads", n, err, c.reads)
	}
}

// TestTheProofCoversAll: a proof for one greeting, rank or random number is none for another. Somebody
// between two members could change what is not covered.
func TestTheProofCoversAll(t *testing.T) {
	g := greeting{protocol, "nonce", nil, 4, 12345, "host", "1.13.0"}
	seen := map[string]int{}
	for i, proof := range [][]byte{g.proof("token", 1, "theirs"), g.proof("tokem", 1, "theirs"),
		g.proof("token", 2, "theirs"), g.proof("token", 1, "their"),
		greeting{protocol, "n", nil, 4, 12345, "host", "1.13.0"}.proof("token", 1, "theirs"),
		greeting{protocol, "nonce", nil, 5, 12345, "host", "1.13.0"}.proof("token", 1, "theirs"),
		greeting{protocol, "nonce", nil, 4, 12345, "host", "2.6.0"}.proof("token", 1, "theirs")} {
		if other, there := seen[string(proof)]; there {
			t.Errorf("proofs %d and %d are the same", other, i)
		}
		seen[string(proof)] = i
	}
}

// TestWhoIsNotAdmitted: a process that knows the token and is no member of this job.
func TestWhoIsNotAdmitted(t *testing.T) {
	cfg := Config{Size: 3}.withDefaults()
	me := introduction(cfg)
	for _, row := range []struct {
		rank, size int
		libtorch   string
		want       string
	}{
		{1, 3, "0.1", "rank 1 has libtorch 0.1, rank 0 " + me.Libtorch}, {1, 4, me.Libtorch, "is one of 4"},
		{0, 3, me.Libtorch, "joins a group of 3; want 1 to 2"}, {3, 3, me.Libtorch, "joins a group of 3"},
	} {
		c, p := newControl(cfg), newPeer(row.rank, nil, cfg)
		p.who = greeting{Size: row.size, Libtorch: row.libtorch}
		if err := c.admit(p, frame{}, me); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%+v: %v", row, err)
		}
	}
}

var frames = []frame{
	jsonFrame(kindGreeting, 3, greeting{protocol, "a", []byte{2}, 4, 12345, "a machine", "1.13.0"}),
	endFrame(0, &refusedError{"no"}),
	{kind: kindReady},
	jsonFrame(kindAddress, 1, part{"0/1", []byte{7, 8}}),
	jsonFrame(kindPart, 1, part{"models", []byte{1, 2, 3}}),
	{kind: kindBeat},
	endFrame(2, &FailedError{2, -1, 5, "forward", "out of memory", true}),
	endFrame(0, &LostError{1, "silent"}),
	{kind: kindBye, rank: 3},
}

// Frames come back, and the longest that are sent can be read.
func TestFrames(t *testing.T) {
	long := func(n int) string { return strings.Repeat("\x01", n) } // six bytes each in JSON
	for _, f := range append(slices.Clone(frames),
		jsonFrame(kindPart, 0, part{What: long(maxWhat), Data: make([]byte, maxPart)}),
		endFrame(0, &FailedError{Action: long(2 * maxText), Message: long(2 * maxText)}),
		endFrame(0, &LostError{Why: long(2 * maxText)})) {
		got, err := readFrame(bytes.NewReader(f.encode()), maxBody)
		if err != nil || got.kind != f.kind || got.rank != f.rank || !bytes.Equal(got.body, f.body) {
			t.Errorf("kind %d: %v, %v", f.kind, got, err)
		}
	}
	g := introduction(Config{Size: maxSize})
	g.Proof, g.Host, g.Libtorch = make([]byte, 32), long(64), long(64)
	for name, f := range map[string]frame{"a greeting": jsonFrame(kindGreeting, maxSize-1, g),
		"a refusal": endFrame(0, &refusedError{strings.Repeat("long", maxHandshake)})} {
		if _, err := readFrame(bytes.NewReader(f.encode()), maxHandshake); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBytesThatAreNoFrame(t *testing.T) {
	head := func(k kind, rank, n uint32) []byte {
		return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32([]byte{byte(k)}, rank), n)
	}
	for name, row := range map[string]struct {
		bytes []byte
		want  error
	}{
		"nothing":         {nil, io.EOF},
		"half a head":     {[]byte{1, 2}, io.ErrUnexpectedEOF},
		"a request":       {[]byte("GET / HTTP/1.1\r\n\r\n"), errFrame},
		"kind 0":          {head(0, 0, 0), errFrame},
		"an unknown kind": {head(kinds, 0, 0), errFrame},
		"no rank":         {head(kindBye, 1<<31, 0), errFrame},
		"too long":        {head(kindPart, 0, 1<<31), errFrame},
		"cut off":         {head(kindBye, 0, 4), io.ErrUnexpectedEOF},
	} {
		if f, err := readFrame(bytes.NewReader(row.bytes), maxBody); !errors.Is(err, row.want) {
			t.Errorf("%s: got %v, %v; want %v", name, f, err, row.want)
		}
	}
	if _, err := readFrame(bytes.NewReader(head(kindGreeting, 0, maxHandshake+1)),
		maxHandshake); !errors.Is(err, errFrame) {
		t.Errorf("a long hello: %v", err)
	}
	c := newControl(Config{Size: 3})
	for range 2 {
		must.Do(t, c.handle(&peer{rank: 1}, jsonFrame(kindPart, 1, part{})))
	}
	for name, f := range map[string]frame{
		"a third part":           jsonFrame(kindPart, 1, part{}),
		"an end of nobody":       jsonFrame(kindEnd, 1, ending{}),
		"an end of another":      endFrame(2, &LostError{Rank: 0}),
		"an end with more":       {kindEnd, 1, []byte(`{"Lost":{}}{}`)},
		"an address that is cut": {kindAddress, 1, []byte(`{"What":"a`)},
		"a part of another":      jsonFrame(kindPart, 2, part{}),
		"a part of rank 0":       jsonFrame(kindPart, 0, part{}),
		"ready of a member":      {kind: kindReady, rank: 1},
		"a hello when it is in":  frames[0],
	} {
		if err := c.handle(&peer{rank: 1}, f); !errors.Is(err, errFrame) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzFrame reads any bytes: nothing panics, and what is read is written as it was.
func FuzzFrame(f *testing.F) {
	for _, m := range frames {
		f.Add(m.encode())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := readFrame(bytes.NewReader(b), maxBody)
		if err != nil {
			return
		}
		if !bytes.HasPrefix(b, got.encode()) {
			t.Errorf("%#v was read from %v and is written as %v", got, b, got.encode())
		}
		c := newControl(Config{Size: 3})
		defer c.board.Close()
		_ = c.handle(&peer{rank: 1}, got)
	})
}
