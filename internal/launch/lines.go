package launch

import (
	"bytes"
	"fmt"
	"io"
	"sync"
)

// longest is the most bytes of a line that are held until its end is there.
const longest = 64 << 10

// lineLog writes the lines of several processes to one writer, each whole and behind the rank of its
// process. It is safe for concurrent use.
type lineLog struct {
	mu      sync.Mutex
	to      io.Writer
	writers map[int]*lineWriter // by rank
}

// named returns the writer of a process. A process has one.
func (l *lineLog) named(rank int) *lineWriter {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.writers == nil {
		l.writers = map[int]*lineWriter{}
	}
	if l.writers[rank] == nil {
		l.writers[rank] = &lineWriter{log: l, prefix: fmt.Sprintf("[%d] ", rank)}
	}
	return l.writers[rank]
}

// lineWriter takes what a process writes.
type lineWriter struct {
	log    *lineLog
	prefix string
	rest   []byte // the beginning of a line; guarded by log.mu
}

// Write writes the lines that are complete. It reports no error: a log that cannot be written must
// not end what is logged.
func (w *lineWriter) Write(p []byte) (int, error) {
	w.log.mu.Lock()
	defer w.log.mu.Unlock()
	w.rest = append(w.rest, p...)
	for {
		line, rest, complete := bytes.Cut(w.rest, []byte("\n"))
		if !complete {
			break
		}
		w.line(line)
		w.rest = rest
	}
	if len(w.rest) >= longest {
		w.line(w.rest)
		w.rest = nil
	}
	return len(p), nil
}

// flush writes a line that the process has not ended.
func (w *lineWriter) flush() {
	w.log.mu.Lock()
	defer w.log.mu.Unlock()
	if len(w.rest) > 0 {
		w.line(w.rest)
		w.rest = nil
	}
}

// line writes a line by one call, so that others who write to the same place do not split it.
func (w *lineWriter) line(text []byte) {
	_, _ = w.log.to.Write(append(append([]byte(w.prefix), text...), '\n'))
}
