package trace

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"penstock.example/internal/arg"
	"penstock.example/schedule"
)

// Read reads the timeline of a trace that [Write] wrote, exact to the nanosecond, its events by
// start. Names of workers, arrows and curves are not part of a timeline and are dropped. It is no
// reader for traces of other programs: what it does not know is an error.
func Read(r io.Reader) (schedule.Timeline, error) {
	var file struct {
		DisplayTimeUnit string   `json:"displayTimeUnit"`
		TraceEvents     []record `json:"traceEvents"`
	}
	if err := arg.Given(r, "trace: Read: the reader", "a trace to read"); err != nil {
		return schedule.Timeline{}, err
	}
	dec := json.NewDecoder(r)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&file); err != nil {
		return schedule.Timeline{}, fmt.Errorf("trace: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return schedule.Timeline{}, errors.New("trace: more follows after the trace")
	}
	var t schedule.Timeline
	for i, rec := range file.TraceEvents {
		switch rec.Phase {
		case phaseMetadata:
			if rec.Name == metaThread && rec.Pid == pid {
				t.Workers++
			}
		case phaseComplete:
			e, err := rec.event()
			if err != nil {
				return schedule.Timeline{}, fmt.Errorf("trace: event %d: %w", i, err)
			}
			t.Events = append(t.Events, e)
		case phaseCounter, phaseFlowFrom, phaseFlowVia, phaseFlowTo:
		default:
			return schedule.Timeline{}, fmt.Errorf("trace: event %d: unknown type %q", i, rec.Phase)
		}
	}
	if err := t.Validate(); err != nil {
		return schedule.Timeline{}, fmt.Errorf("trace: %w", err)
	}
	return t, nil
}

// event returns what a complete record says, if it says the same thing everywhere.
func (r record) event() (schedule.Event, error) {
	if r.Args == nil {
		return schedule.Event{}, fmt.Errorf("%q has no action", r.Name)
	}
	a, err := schedule.ParseAction(r.Args.Action)
	switch {
	case err != nil:
		return schedule.Event{}, err
	case r.Ts == nil || r.Dur == nil:
		return schedule.Event{}, fmt.Errorf("%v has no time", a)
	case r.Args.Stage == nil || (r.Args.MicroBatch == nil) != (a.Kind == schedule.Reduce):
		return schedule.Event{}, fmt.Errorf("%v has no stage or micro-batch, or is of all and has one", a)
	case r.Args.Live < 0:
		return schedule.Event{}, fmt.Errorf("%v left %d bytes", a, r.Args.Live)
	}
	microBatch := 0
	if r.Args.MicroBatch != nil {
		microBatch = *r.Args.MicroBatch
	}
	if r.Name != a.Words() || *r.Args.Stage != a.Stage || microBatch != a.MicroBatch || r.Cat != category(a.Kind) {
		return schedule.Event{}, fmt.Errorf("%v is said to be %q, %s of micro-batch %d on stage %d",
			a, r.Name, r.Cat, microBatch, *r.Args.Stage)
	}
	start := time.Duration(*r.Ts)
	return schedule.Event{Worker: r.Tid - 1, Action: a, Start: start, End: start + time.Duration(*r.Dur), Live: r.Args.Live}, nil
}
