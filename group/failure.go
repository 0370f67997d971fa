package group

import (
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"
)

// Limits in bytes of the texts and data that members send each other.
const (
	maxText = 4 << 10
	maxWhat = 256
	maxPart = 64 << 20
)

// FailedError says which member could not go on, perhaps this one, and where it was. Without a stage or
// micro-batch the numbers are -1.
type FailedError struct {
	Rank, Stage, MicroBatch int
	Action                  string // such as "forward"
	Message                 string
}

// bounded returns e with texts that are short enough to be sent.
func (e FailedError) bounded() FailedError {
	e.Action, e.Message = cut(e.Action, maxText), cut(e.Message, maxText)
	return e
}

// cut shortens s to at most n bytes of whole characters.
func cut(s string, n int) string {
	const dots = "..."
	s = strings.ToValidUTF8(s, "?")
	if len(s) <= n {
		return s
	}
	n -= len(dots)
	for !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + dots
}

// Error names the rank, and the stage, micro-batch and action if they are known.
func (e *FailedError) Error() string {
	s := fmt.Sprintf("rank %d failed: ", e.Rank)
	if e.Stage >= 0 {
		s += fmt.Sprintf("stage %d, ", e.Stage)
	}
	if e.MicroBatch >= 0 {
		s += fmt.Sprintf("micro-batch %d, ", e.MicroBatch)
	}
	if e.Action != "" {
		s += e.Action + ": "
	}
	return s + e.Message
}

// LostError says that a member is gone without an error: it died, was stopped, or cannot be reached.
type LostError struct {
	Rank int
	Why  string
}

// Error names the rank and the reason.
func (e *LostError) Error() string { return fmt.Sprintf("rank %d is lost: %s", e.Rank, e.Why) }

// refusedError is the reason why rank 0 has refused a member.
type refusedError struct{ Text string }

func (e *refusedError) Error() string { return e.Text }

// outcome is the first failure of a group.
type outcome struct {
	once   sync.Once
	failed chan struct{}
	err    error // set before failed is closed
}

func newOutcome() *outcome { return &outcome{failed: make(chan struct{})} }

// set records a failure if it is the first. If before is not nil, it is called before anybody can know of
// the failure.
func (o *outcome) set(err error, before func()) {
	o.once.Do(func() {
		if o.err = err; before != nil {
			before()
		}
		close(o.failed)
	})
}

// get returns the first failure, or nil.
func (o *outcome) get() error {
	select {
	case <-o.failed:
		return o.err
	default:
		return nil
	}
}
