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
)

// openTrace chooses the step to record, and checks that the trace can be written. The first steps are not
// typical: the first touches fresh memory, and the second is the first in which the optimizer has its state.
func (j *job) openTrace(context.Context, io.Writer) error {
	if j.traceFile == "" && j.out == "" && j.dashboardAt == "" {
		return nil
	}
	j.recorded = min(j.loop.Step+3, j.last)
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
	return probe("trace", j.traceFile, inputs...)
}

// writeTrace writes the recorded step to the file of --trace. A run that was too short to record says so.
func (j *job) writeTrace(stderr io.Writer) error {
	switch {
	case j.traceFile == "" || j.member.Rank > 0:
		return nil
	case j.page == nil:
		fmt.Fprintf(stderr, "no step was recorded, %s is not written\n", j.traceFile)
		return nil
	}
	fmt.Fprintf(stderr, "step %d, recorded in %s\n", j.recorded, j.traceFile)
	var workers []string
	for i, name := range j.pipe.Config().DeviceNames() {
		workers = append(workers, fmt.Sprintf("worker %d · %s", i, name))
	}
	if filepath.Ext(j.traceFile) == ".svg" {
		svg := draw.SVG(*j.page.Ran, draw.Options{Title: fmt.Sprintf("step %d", j.recorded), Workers: workers,
			Bytes: formatBytes})
		return disk.Write(j.traceFile, func(w io.Writer) error { _, err := w.Write(svg); return err })
	}
	return trace.WriteFile(j.traceFile, *j.page.Ran, workers)
}
