package progress

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// TestTask: a log gets whole lines.
func TestTask(t *testing.T) {
	var log bytes.Buffer
	p := New(&log, "planning", "layers")
	p.tell(p.began.Add(3 * time.Second))
	p.At(2, 4)
	p.tell(p.began.Add(4 * time.Second))
	p.Note("schedule 2 of 4, 1f1b")
	p.tell(p.began.Add(5 * time.Second))
	p.Line("kept")
	p.End()
	if want := "planning for 3 s\nplanning for 4 s: 2 of 4 layers\n" +
		"planning for 5 s: schedule 2 of 4, 1f1b\nkept\n"; log.String() != want {
		t.Errorf("got %q, want %q", &log, want)
	}
}

// TestBar: a terminal gets a row that goes away again, has no colours and is never wider than the terminal.
func TestBar(t *testing.T) {
	var log bytes.Buffer
	p := New(&log, "evaluating", "samples")
	p.bar = newBar(&log)
	last := func() string {
		rows := strings.Split(strings.TrimSuffix(log.String(), "\x1b[0K"), "\r")
		return rows[len(rows)-1]
	}
	p.tell(p.began)
	if row := last(); !strings.Contains(row, "evaluating") {
		t.Errorf("without a number: %q", row)
	}
	p.At(3, 4)
	p.tell(p.began)
	if row := last(); !strings.Contains(row, " 75% |███████████    |  [") ||
		!strings.Contains(row, "] evaluating: 3 of 4 samples") {
		t.Errorf("three of four: %q", row)
	}
	p.At(4, 4)
	p.Note(strings.Repeat("x", 200))
	p.tell(p.began)
	if row := last(); len([]rune(row)) >= UsualWidth || !strings.Contains(row, "xxx") {
		t.Errorf("a row of %d: %q", len([]rune(row)), row)
	}
	p.Line("kept")
	p.End()
	if text := log.String(); !strings.HasSuffix(text, "\x1b[2K\rkept\n\x1b[2K\r") ||
		strings.Count(text, "\x1b[") != strings.Count(text, "\x1b[2K")+strings.Count(text, "\x1b[0K") {
		t.Errorf("got %q", text)
	}
}
