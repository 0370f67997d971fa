package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"

	"penstock.example/data"
	"penstock.example/internal/draw"
	"penstock.example/internal/trace"
)

// openTrace chooses the step to record and checks that the trace can be written. The first two steps
// are not typical: they touch fresh memory, for activations and for the optimizer's state.
func (j *job) openTrace(context.Context, io.Writer) error {
	if j.traceFile == "" && j.out == "" && j.dashboardAt == "" {
		return nil
	}
	j.recorded = min(j.loop.Step+3, j.last)
	if j.traceFile == "" || j.member.Rank > 0 {
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
		return writeFile(j.traceFile, svg)
	}
	return trace.WriteFile(j.traceFile, *j.page.Ran, workers)
}
