package launch

import (
	"bytes"
	"io"
	"strings"
	"sync"
	"syscall"
)

const maxLine = 64 << 10 // longer lines are split

// lineWriter writes the lines of one process to the log of a job. Each line begins with the process's rank.
type lineWriter struct {
	mu     *sync.Mutex // of the job
	to     io.Writer
	prefix string
	rest   []byte         // an incomplete line
	signal syscall.Signal // a line names it as the cause of a Go program's crash; 0 is none
}

// crashes are the signals that crash a Go program, by the word that its runtime begins with.
var crashes = map[string]syscall.Signal{"SIGABRT": syscall.SIGABRT, "SIGBUS": syscall.SIGBUS,
	"SIGFPE": syscall.SIGFPE, "SIGILL": syscall.SIGILL, "SIGQUIT": syscall.SIGQUIT,
	"SIGSEGV": syscall.SIGSEGV, "SIGTRAP": syscall.SIGTRAP}

// Write writes the complete lines. It reports no error: a process must not end because of its log.
func (w *lineWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rest = append(w.rest, p...)
	for {
		line, rest, complete := bytes.Cut(w.rest, []byte("\n"))
		if !complete && len(line) < maxLine {
			return len(p), nil
		}
		if word, _, _ := strings.Cut(string(line), ": "); w.signal == 0 {
			w.signal = crashes[word]
		}
		// One call, so that other writers to the same file do not split the line.
		_, _ = w.to.Write(append(append([]byte(w.prefix), line...), '\n'))
		w.rest = rest
	}
}

// flush writes an incomplete line.
func (w *lineWriter) flush() {
	if len(w.rest) > 0 {
		_, _ = w.Write([]byte("\n"))
	}
}
