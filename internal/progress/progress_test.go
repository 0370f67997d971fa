package progress

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// TestTask: a log gets whole lines, a terminal one that goes away again and is never wider than it.
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
		if p.Note(strings.Repeat("x", 200)); live {
			long := len(log.String())
			p.tell(p.began)
			if row := log.String()[long+len("\r\x1b[K"):]; len(row) >= UsualWidth {
				t.Errorf("a row of %d: %q", len(row), row)
			}
			log.Truncate(long)
			p.shown = false
		}
		p.End()
		if log.String() != want {
			t.Errorf("got %q, want %q", &log, want)
		}
	}
}
