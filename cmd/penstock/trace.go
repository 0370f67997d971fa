package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"

	"penstock.example/data"
	"penstock.example/internal/disk"
	"penstock.example/internal/draw"
	"penstock.example/internal/trace"
	"penstock.example/pipe"
	"penstock.example/schedule"
	"penstock.example/train"
)

// stepTrace is the recording of one step. Its zero value records nothing.
type stepTrace struct {
	file     string
	step     int64 // the one to record
	timeline *schedule.Timeline
}

// openTrace chooses the step, and checks that the trace can be written. The first steps are not typical: the
// first touches fresh memory, and the second is the first in which the optimizer has its state.
func (j *job) openTrace(context.Context, io.Writer) error {
	if j.traceFile == "" && j.out == "" && j.dashboardAt == "" {
		return nil
	}
	j.trace = stepTrace{step: min(j.loop.Step+3, j.last)}
	if j.traceFile == "" || j.member.Rank > 0 { // rank 0 writes it
		return nil
	}
	inputs, err := data.Files(j.dataName, j.dataDir, j.data)
	if err != nil {
		return err
	}
	if j.from != nil {
		inputs = append(inputs, j.from.Paths()...)
	}
	j.trace.file = j.traceFile
	return probe("trace", j.traceFile, inputs...)
}

// hook makes the pipe record the chosen step, and keeps the recording.
func (t *stepTrace) hook(p *pipe.Pipe, done int64) train.Hook {
	p.SetRecord(t.step == done+1)
	return func(s train.StepInfo) error {
		if s.Step == t.step {
			t.timeline = s.Timeline
		}
		p.SetRecord(t.step == s.Step+1)
		return nil
	}
}

// finish writes the recorded step to the file. A run that was too short to record says so.
func (t *stepTrace) finish(p *pipe.Pipe, stderr io.Writer) error {
	if t.file == "" {
		return nil
	}
	if t.timeline == nil {
		fmt.Fprintf(stderr, "no step was recorded, %s is not written\n", t.file)
		return nil
	}
	fmt.Fprintf(stderr, "step %d, recorded in %s\n", t.step, t.file)
	var workers []string
	for i, name := range p.Config().DeviceNames() {
		workers = append(workers, fmt.Sprintf("worker %d · %s", i, name))
	}
	if filepath.Ext(t.file) == ".svg" {
		svg := draw.SVG(*t.timeline, draw.Options{Title: fmt.Sprintf("step %d", t.step), Workers: workers,
			Bytes: formatBytes})
		return disk.Write(t.file, func(w io.Writer) error { _, err := w.Write(svg); return err })
	}
	return trace.WriteFile(t.file, *t.timeline, workers)
}
