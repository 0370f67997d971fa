package progress

import (
	"bytes"
	"testing"
	"time"
)

// TestTask: a log gets whole lines, a terminal one that goes away again.
func TestTask(t *testing.T) {
	for live, want := range map[bool]string{
		false: "planning for 3 s\nplanning for 5 s: schedule 2 of 4, 1f1b\nkept\n",
		true:  "\r\x1b[Kplanning for 3 s\r\x1b[Kplanning for 5 s: schedule 2 of 4, 1f1b\r\x1b[Kkept\n",
	} {
		var log bytes.Buffer
		p := New(&log, "planning", "")
		p.live = live
		p.tell(p.began.Add(3 * time.Second))
		p.Note("schedule 2 of 4, 1f1b")
		p.tell(p.began.Add(5 * time.Second))
		p.Line("kept")
		p.End()
		if log.String() != want {
			t.Errorf("got %q, want %q", &log, want)
		}
	}
}
