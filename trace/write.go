package trace

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"penstock.example/internal/arg"
	"penstock.example/schedule"
)

// Options says what a trace shows besides the events. The zero Options is valid.
type Options struct {
	// Process names the whole. Empty means "penstock".
	Process string

	// Workers names the rows, as in "worker 0 · cpu:0": one name for each worker. Nil means "worker
	// 0" and so on.
	Workers []string
}

// ConfigError is a setting that is refused.
type ConfigError = arg.ConfigError

// Write writes the timeline as JSON, one trace event per line. It returns an error for a timeline
// that is not valid, for a time before zero, a *ConfigError for names that are not one per worker,
// and the first error of w.
func Write(w io.Writer, t schedule.Timeline, opts Options) error {
	if err := arg.Given(w, "trace: Write: the writer", "what is to take the trace"); err != nil {
		return err
	}
	if err := t.Validate(); err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	if opts.Workers != nil && len(opts.Workers) != t.Workers {
		return &ConfigError{Of: "trace", Field: "Workers", Value: opts.Workers,
			Problem: fmt.Sprintf("%d for %d workers", len(opts.Workers), t.Workers), Remedy: "want one for each worker, or none"}
	}
	out := &writer{w: bufio.NewWriter(w)}
	out.text(`{"displayTimeUnit":"ms","traceEvents":[`)
	writeNames(out, pid, t.Workers, opts)
	if slices.ContainsFunc(t.Events, func(e schedule.Event) bool { return e.Action.Kind == schedule.Reduce }) {
		writeNames(out, pidReductions, t.Workers, opts)
	}
	events := slices.Clone(t.Events)
	slices.SortStableFunc(events, func(a, b schedule.Event) int { return cmp.Compare(a.Start, b.Start) })
	writeEvents(out, events)
	writeLive(out, events, opts)
	out.text("\n]}\n")
	if out.err == nil {
		out.err = out.w.Flush()
	}
	if out.err != nil {
		return fmt.Errorf("trace: %w", out.err)
	}
	return nil
}

// writeNames writes the metadata of a process: who it and the workers are, and that rows go by
// number.
func writeNames(out *writer, pid, workers int, opts Options) {
	process := opts.Process
	if process == "" {
		process = "penstock"
	}
	if pid == pidReductions {
		process += ", gradient reductions"
	}
	out.record(record{Phase: phaseMetadata, Pid: pid, Name: metaProcess, Args: &args{Name: process}})
	for w := range workers {
		out.record(record{Phase: phaseMetadata, Pid: pid, Tid: tid(w), Name: metaThread, Args: &args{Name: opts.worker(w)}})
		out.record(record{Phase: phaseMetadata, Pid: pid, Tid: tid(w), Name: metaSort, Args: &args{SortIndex: &w}})
	}
}

// worker is the name of a worker.
func (o Options) worker(w int) string {
	if o.Workers != nil {
		return o.Workers[w]
	}
	return fmt.Sprintf("worker %d", w)
}

// writeEvents writes events, which are sorted by start, each followed by its ends of arrows: a
// viewer binds those to the slice that is open at their time, which is the last one that it has
// read.
func writeEvents(out *writer, events []schedule.Event) {
	arrows := flows(events)
	for i, e := range events {
		out.record(complete(e))
		for _, end := range arrows[i] {
			out.record(end)
		}
	}
}

func complete(e schedule.Event) record {
	a := e.Action
	start, dur := micros(e.Start), micros(e.End-e.Start)
	r := record{
		Phase: phaseComplete,
		Pid:   pid,
		Tid:   tid(e.Worker),
		Ts:    &start,
		Dur:   &dur,
		Name:  a.Words(),
		Cat:   category(a.Kind),
		Args:  &args{Action: a.String(), Stage: &a.Stage, MicroBatch: &a.MicroBatch, Live: e.Live},
	}
	if a.Kind == schedule.Reduce { // of all micro-batches
		r.Pid, r.Args.MicroBatch = pidReductions, nil
	}
	return r
}

// category is what viewers filter and colour by.
func category(k schedule.Kind) string {
	if k.Transfer() {
		return "transfer"
	}
	return k.String()
}

// writeLive writes a curve for each worker: the bytes that are live on its device after each event
// that says so.
func writeLive(out *writer, events []schedule.Event, opts Options) {
	for _, e := range events {
		if e.Live != 0 {
			at := micros(e.End)
			out.record(record{Phase: phaseCounter, Pid: pid, Ts: &at, Name: "bytes live, " + opts.worker(e.Worker),
				Args: &args{Bytes: &e.Live}})
		}
	}
}

// writer writes records until the first error, which it keeps.
type writer struct {
	w    *bufio.Writer
	some bool // a record has been written
	err  error
}

func (out *writer) text(s string) {
	if out.err == nil {
		_, out.err = out.w.WriteString(s)
	}
}

func (out *writer) record(r record) {
	if out.err != nil {
		return
	}
	var line bytes.Buffer
	enc := json.NewEncoder(&line)
	enc.SetEscapeHTML(false) // 0>1F2 stays legible
	if out.err = enc.Encode(r); out.err != nil {
		return
	}
	if out.some {
		out.text(",")
	}
	out.some = true
	out.text("\n" + string(bytes.TrimSuffix(line.Bytes(), []byte("\n"))))
}
