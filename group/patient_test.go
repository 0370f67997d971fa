package group

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"
)

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
	if n, err := (&deadlineReader{c, silence, nil}).Read(b[:]); n != 4 || err != nil {
		t.Errorf("after a stop: %d bytes, %v", n, err)
	}
	c = &stopped{stops: 1000}
	if n, err := (&deadlineReader{c, silence, nil}).Read(b[:]); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) || c.reads != 5 {
		t.Errorf("of a silence: %d bytes, %v after %d reads", n, err, c.reads)
	}
}
