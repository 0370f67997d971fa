package pipe_test

import (
	"fmt"
	"maps"
	"sync"

	"penstock.example/internal/stream"
)

// clocks tell which work on which streams is known to come before which, as vector clocks do (Mattern,
// "Virtual Time and Global States of Distributed Systems", 1989). The work itself is that of a CPU.
type clocks struct {
	mu      sync.Mutex
	without stream.Reason // waits that are left out; stream.Reasons for none
	faults  []string
}

func (w *clocks) fault(format string, args ...any) {
	w.faults = append(w.faults, fmt.Sprintf(format, args...))
}

// clocked is a stream: how much was queued on it, and how much of each stream has ended before what is
// queued next begins.
type clocked struct {
	on      *clocks
	queued  int
	ended   int // how much the host knows to have ended
	knows   map[*clocked]int
	records func()                  // called by Record
	waits   func(why stream.Reason) // called at the end of Wait
}

func (w *clocks) stream() *clocked {
	return &clocked{on: w, knows: map[*clocked]int{}, records: func() {}, waits: func(stream.Reason) {}}
}

// work queues something.
func (s *clocked) work() {
	s.queued++
	s.knows[s] = s.queued
}

// knowsAll reports whether all that was queued on another stream has ended before what is queued next
// begins.
func (s *clocked) knowsAll(of *clocked) bool { return s.knows[of] >= of.queued }

func (s *clocked) Record() stream.Event {
	s.on.mu.Lock()
	defer s.on.mu.Unlock()
	s.records()
	return &clockedEvent{s.on, maps.Clone(s.knows)}
}

func (s *clocked) Wait(e stream.Event, why stream.Reason) {
	s.on.mu.Lock()
	defer s.on.mu.Unlock()
	if of, is := e.(*clockedEvent); is && why != s.on.without {
		for other, n := range of.knows {
			s.knows[other] = max(s.knows[other], n)
		}
	}
	s.waits(why)
}

type clockedEvent struct {
	of    *clocks
	knows map[*clocked]int
}

func (e *clockedEvent) Synchronize() {
	e.of.mu.Lock()
	defer e.of.mu.Unlock()
	if e.of.without != stream.Ended {
		for s, n := range e.knows {
			s.ended = max(s.ended, n)
		}
	}
}

func (*clockedEvent) Free() {}
