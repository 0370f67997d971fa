package schedule

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Event is an action that took place, in virtual or in real time.
type Event struct {
	Worker     int
	Action     Action
	Start, End time.Duration // since a moment that all events share
	Live       int64         // bytes live on the worker's device at the end; 0 if not known
}

// Timeline is what workers did and when, simulated or recorded. Events need no order. An action may
// occur more than once, if several steps are recorded.
type Timeline struct {
	Workers int
	Events  []Event
}

// Validate returns an error for the first event that is on no worker or ends before it starts.
func (t Timeline) Validate() error {
	for _, e := range t.Events {
		if e.Worker < 0 || e.Worker >= t.Workers {
			return fmt.Errorf("schedule: timeline: %v is on worker %d of %d", e.Action, e.Worker, t.Workers)
		}
		if e.End < e.Start {
			return fmt.Errorf("schedule: timeline: %v on worker %d ends at %v, before its start at %v",
				e.Action, e.Worker, e.End, e.Start)
		}
	}
	return nil
}

// Makespan returns the time from the first event's start to the last one's end, over all workers.
func (t Timeline) Makespan() time.Duration {
	start, end := t.bounds()
	return end - start
}

func (t Timeline) bounds() (start, end time.Duration) {
	if len(t.Events) > 0 {
		start, end = t.Events[0].Start, t.Events[0].End
	}
	for _, e := range t.Events {
		start, end = min(start, e.Start), max(end, e.End)
	}
	return start, end
}

// Idle returns the share of the makespan, from 0 to 1, in which the worker does nothing. Transfers
// count as work; reductions, which run beside it, do not. Events that overlap count once.
func (t Timeline) Idle(worker int) float64 {
	start, end := t.bounds()
	if start == end {
		return 0
	}
	var busy time.Duration
	until := start
	for _, e := range t.eventsOf(worker) {
		if e.End > until && e.Action.Kind != Reduce {
			busy += e.End - max(e.Start, until)
			until = e.End
		}
	}
	return 1 - float64(busy)/float64(end-start)
}

// eventsOf returns one worker's events by start.
func (t Timeline) eventsOf(worker int) []Event {
	var events []Event
	for _, e := range t.Events {
		if e.Worker == worker {
			events = append(events, e)
		}
	}
	slices.SortStableFunc(events, func(a, b Event) int { return cmp.Compare(a.Start, b.Start) })
	return events
}
