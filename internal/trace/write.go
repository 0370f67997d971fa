// Package trace writes a [schedule.Timeline] as a Chrome trace-event file, which
// https://ui.perfetto.dev and chrome://tracing open: a row per worker, a slice per action, arrows
// that follow values between stages, and a curve of each device's live bytes if the timeline has
// them.
//
// The format is described in "Trace Event Format" (Google, 2016).
package trace

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"penstock.example/schedule"
)

// JSON returns the text of the file, one trace event per line. workers names the rows, as in
// "worker 0 · cpu:0", one name per worker. The timeline is valid and begins at 0 or later.
func JSON(t schedule.Timeline, workers []string) []byte {
	records := metadata(pid, "penstock", workers)
	reduces := func(e schedule.Event) bool { return e.Action.Kind == schedule.Reduce }
	if slices.ContainsFunc(t.Events, reduces) {
		records = append(records, metadata(pidReductions, "penstock, gradient reductions", workers)...)
	}
	events := slices.Clone(t.Events)
	slices.SortStableFunc(events, func(a, b schedule.Event) int { return cmp.Compare(a.Start, b.Start) })
	// The ends of arrows follow their event: a viewer binds them to the last slice it has read.
	arrows := flows(events)
	for i, e := range events {
		records = append(append(records, slice(e)), arrows[i]...)
	}
	for _, e := range events {
		if e.Live != 0 { // a curve for each worker
			records = append(records, record{Phase: "C", Pid: pid, Ts: new(micros(e.End)),
				Name: "bytes live, " + workers[e.Worker], Args: &args{Bytes: &e.Live}})
		}
	}
	out := bytes.NewBufferString(`{"displayTimeUnit":"ms","traceEvents":[` + "\n")
	encoder := json.NewEncoder(out) // ends each record with a newline
	encoder.SetEscapeHTML(false)    // 0>1F2 stays legible
	for i, r := range records {
		if i > 0 {
			out.WriteByte(',')
		}
		_ = encoder.Encode(r) // records have no error
	}
	out.WriteString("]}\n")
	return out.Bytes()
}

// record is one trace event of any type.
type record struct {
	// Phase is M for metadata, X for a slice, C for a counter, and s, t or f for an arrow's start,
	// middle or end.
	Phase string  `json:"ph"`
	Pid   int     `json:"pid"`
	Tid   int     `json:"tid,omitempty"`
	Ts    *micros `json:"ts,omitempty"`
	Dur   *micros `json:"dur,omitempty"`
	Name  string  `json:"name"`
	Cat   string  `json:"cat,omitempty"`
	ID    int     `json:"id,omitempty"`
	Bind  string  `json:"bp,omitempty"`
	Args  *args   `json:"args,omitempty"`
}

// pid is the process whose threads are the workers. Reductions have a second process with the same
// threads: they run beside their worker's actions, and slices of one thread must not overlap.
// Perfetto takes thread 0 for the kernel's idle thread, so worker 0 is thread 1.
const (
	pid           = 1
	pidReductions = 2
)

func tid(worker int) int { return worker + 1 }

type args struct {
	Name       string `json:"name,omitempty"`
	SortIndex  *int   `json:"sort_index,omitempty"`
	Action     string `json:"action,omitempty"`
	Stage      *int   `json:"stage,omitempty"`
	MicroBatch *int   `json:"micro_batch,omitempty"`
	Live       int64  `json:"live_bytes,omitempty"`
	Bytes      *int64 `json:"bytes,omitempty"`
}

// micros is a time that JSON shows in microseconds with three decimals.
type micros time.Duration

func (m micros) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, "%d.%03d", m/1000, m%1000), nil
}

// metadata returns the name of a process, and the names and the order of its workers.
func metadata(pid int, process string, workers []string) []record {
	out := []record{{Phase: "M", Pid: pid, Name: "process_name", Args: &args{Name: process}}}
	for w, name := range workers {
		out = append(out,
			record{Phase: "M", Pid: pid, Tid: tid(w), Name: "thread_name", Args: &args{Name: name}},
			record{Phase: "M", Pid: pid, Tid: tid(w), Name: "thread_sort_index", Args: &args{SortIndex: &w}})
	}
	return out
}

// slice returns the slice of an event. Viewers filter and colour by its category.
func slice(e schedule.Event) record {
	a := e.Action
	r := record{Phase: "X", Pid: pid, Tid: tid(e.Worker), Ts: new(micros(e.Start)),
		Dur: new(micros(e.End - e.Start)), Name: a.Words(), Cat: a.Kind.String(),
		Args: &args{Action: a.String(), Stage: &a.Stage, MicroBatch: &a.MicroBatch, Live: e.Live}}
	switch {
	case a.Kind.Transfer():
		r.Cat = "transfer"
	case a.Kind == schedule.Reduce: // it is for all micro-batches
		r.Pid, r.Args.MicroBatch = pidReductions, nil
	}
	return r
}
