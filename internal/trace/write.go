// Package trace writes a [schedule.Timeline], simulated or recorded, as a Chrome trace-event file,
// which https://ui.perfetto.dev and chrome://tracing open: a row per worker, a slice per action,
// arrows that follow values between stages, and a curve of the bytes live on each device where
// the timeline has them.
//
// The format is described in "Trace Event Format" (Google, 2016).
package trace

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"penstock.example/internal/disk"
	"penstock.example/schedule"
)

// WriteFile writes the timeline to a file, as [Write] does. With an error, an older file stays as it
// was. The folder must exist.
func WriteFile(path string, t schedule.Timeline, workers []string) error {
	return disk.Write(path, func(w io.Writer) error { return Write(w, t, workers) })
}

// Write writes the timeline as JSON, one trace event per line. workers names the rows, as in "worker 0 ·
// cpu:0". It returns an error for a timeline that is not valid, for a time before zero, for names that
// are not one per worker, and the first error of w.
func Write(w io.Writer, t schedule.Timeline, workers []string) error {
	if err := t.Validate(); err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	if len(workers) != t.Workers {
		return fmt.Errorf("trace: %d names for %d workers; want one for each", len(workers), t.Workers)
	}
	records := names(pid, "penstock", workers)
	reduces := func(e schedule.Event) bool { return e.Action.Kind == schedule.Reduce }
	if slices.ContainsFunc(t.Events, reduces) {
		records = append(records, names(pidReductions, "penstock, gradient reductions", workers)...)
	}
	events := slices.Clone(t.Events)
	slices.SortStableFunc(events, func(a, b schedule.Event) int { return cmp.Compare(a.Start, b.Start) })
	// An event is followed by its ends of arrows: a viewer binds an arrow to the last slice that it has
	// read before.
	arrows := flows(events)
	for i, e := range events {
		records = append(append(records, complete(e)), arrows[i]...)
	}
	for _, e := range events {
		if e.Live != 0 { // a curve for each worker
			records = append(records, record{Phase: "C", Pid: pid, Ts: new(micros(e.End)),
				Name: "bytes live, " + workers[e.Worker], Args: &args{Bytes: &e.Live}})
		}
	}
	out := bufio.NewWriter(w)
	encoder := json.NewEncoder(out) // it ends each record with a line
	encoder.SetEscapeHTML(false)    // 0>1F2 stays legible
	fmt.Fprintln(out, `{"displayTimeUnit":"ms","traceEvents":[`)
	for i, r := range records {
		if i > 0 {
			out.WriteByte(',')
		}
		if err := encoder.Encode(r); err != nil {
			return fmt.Errorf("trace: %w", err)
		}
	}
	fmt.Fprintln(out, "]}")
	return out.Flush()
}

// record is one trace event of any type. Fields that a type does not have are absent.
type record struct {
	// Phase is M for metadata, X for a slice, C for a counter, and of an arrow s where it starts, t
	// where it passes and f where it ends.
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

// pid is the process of the workers, which are its threads. Reductions have one of their own with
// the same threads, as they go on beside what their worker does, and slices of a thread must not
// overlap. Perfetto takes a thread 0 for the kernel's idle thread, so worker 0 is thread 1.
const (
	pid           = 1
	pidReductions = 2
)

func tid(worker int) int { return worker + 1 }

// args holds the arguments of all types of records.
type args struct {
	Name       string `json:"name,omitempty"`
	SortIndex  *int   `json:"sort_index,omitempty"`
	Action     string `json:"action,omitempty"`
	Stage      *int   `json:"stage,omitempty"`
	MicroBatch *int   `json:"micro_batch,omitempty"`
	Live       int64  `json:"live_bytes,omitempty"`
	Bytes      *int64 `json:"bytes,omitempty"`
}

// micros is a time that JSON shows in microseconds, with three decimals for the nanoseconds.
type micros time.Duration

func (m micros) MarshalJSON() ([]byte, error) {
	if m < 0 {
		return nil, fmt.Errorf("negative time %v", time.Duration(m))
	}
	return fmt.Appendf(nil, "%d.%03d", m/1000, m%1000), nil
}

// names returns the metadata of a process: its name, and the names and the order of its workers.
func names(pid int, process string, workers []string) []record {
	out := []record{{Phase: "M", Pid: pid, Name: "process_name", Args: &args{Name: process}}}
	for w, name := range workers {
		out = append(out,
			record{Phase: "M", Pid: pid, Tid: tid(w), Name: "thread_name", Args: &args{Name: name}},
			record{Phase: "M", Pid: pid, Tid: tid(w), Name: "thread_sort_index", Args: &args{SortIndex: &w}})
	}
	return out
}

// complete returns the slice of an event. Viewers filter and colour by its category.
func complete(e schedule.Event) record {
	a := e.Action
	r := record{Phase: "X", Pid: pid, Tid: tid(e.Worker), Ts: new(micros(e.Start)),
		Dur: new(micros(e.End - e.Start)), Name: a.Words(), Cat: a.Kind.String(),
		Args: &args{Action: a.String(), Stage: &a.Stage, MicroBatch: &a.MicroBatch, Live: e.Live}}
	switch {
	case a.Kind.Transfer():
		r.Cat = "transfer"
	case a.Kind == schedule.Reduce: // of all micro-batches
		r.Pid, r.Args.MicroBatch = pidReductions, nil
	}
	return r
}
