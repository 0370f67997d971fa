package group

import (
	"fmt"
	"strings"
	"sync"
)

// Limits in bytes of the texts and data that members send each other.
const (
	maxText = 4 << 10
	maxWhat = 256
	maxPart = 64 << 20
)

// FailedError says which member has failed, perhaps this one, and where. Stage and MicroBatch are -1 if
// unknown.
type FailedError struct {
	Rank, Stage, MicroBatch int
	Action                  string // such as "forward"
	Message                 string
	Usage                   bool // the member's command line or input is wrong, so a restart would fail
}

// cut shortens s to at most n bytes of UTF-8.
func cut(s string, n int) string {
	if len(s) > n {
		s = s[:n-3] + "..."
	}
	return strings.ToValidUTF8(s, "?")
}

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

// LostError says that a member is gone without a report: it died, was stopped, or cannot be reached.
type LostError struct {
	Rank int
	Why  string
}

func (e *LostError) Error() string { return fmt.Sprintf("rank %d is lost: %s", e.Rank, e.Why) }

// refusedError is rank 0's reason for refusing a member.
type refusedError struct{ Text string }

func (e *refusedError) Error() string { return e.Text }

// outcome is the first failure of a group.
type outcome struct {
	once   sync.Once
	failed chan struct{}
	err    error // set before failed is closed
}

func newOutcome() *outcome { return &outcome{failed: make(chan struct{})} }

// set records a failure if it is the first. It calls announce, if not nil, before get returns the failure.
func (o *outcome) set(err error, announce func()) {
	o.once.Do(func() {
		if o.err = err; announce != nil {
			announce()
		}
		close(o.failed)
	})
}

func (o *outcome) get() error {
	if closed(o.failed) {
		return o.err
	}
	return nil
}

// closed reports whether a channel is closed that carries nothing.
func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
