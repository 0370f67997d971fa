package launch

import (
	"bytes"
	"io"
	"sync"
)

// maxLine is the most bytes of a line that are held until it ends.
const maxLine = 64 << 10

// lineWriter writes the lines of one process to the log of a job. Lines stay whole, and each begins with the
// rank of its process.
type lineWriter struct {
	mu     *sync.Mutex // of the job
	to     io.Writer
	prefix string
	rest   []byte // the beginning of a line
}

// Write writes the lines that are complete. It reports no error: a process must not end because its log
// cannot be written.
func (w *lineWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
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
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.rest) > 0 {
		w.line(w.rest)
		w.rest = nil
	}
}

// line writes a line by one call, so that other writers to the same file do not split it.
func (w *lineWriter) line(text []byte) {
	_, _ = w.to.Write(append(append([]byte(w.prefix), text...), '\n'))
}
