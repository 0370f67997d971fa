package launch

import (
	"bytes"
	"io"
	"sync"
)

// maxLine is the most bytes of a line that are held until it ends.
const maxLine = 64 << 10

// lineLog writes the lines of several processes to one writer. Lines stay whole, and each begins with the
// rank of its process. It is safe for concurrent use.
type lineLog struct {
	mu sync.Mutex
	to io.Writer
}

// lineWriter is the writer of one process.
type lineWriter struct {
	log    *lineLog
	prefix string
	rest   []byte // the beginning of a line; guarded by log.mu
}

// Write writes the lines that are complete. It reports no error: a process must not end because its log
// cannot be written.
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
	if len(w.rest) >= maxLine {
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

// line writes a line by one call, so that other writers to the same file do not split it.
func (w *lineWriter) line(text []byte) {
	_, _ = w.log.to.Write(append(append([]byte(w.prefix), text...), '\n'))
}
