package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"penstock.example/data"
	"penstock.example/internal/draw"
	"penstock.example/internal/metrics"
	"penstock.example/internal/report"
	"penstock.example/internal/solver"
	"penstock.example/internal/trace"
)

func newReport() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "report DIR|PLAN --out FILE.html",
		Short: "Write a page about a run or a plan, to look at in a browser",
		Long: `Write a page about a run of penstock train --out DIR, or a plan of penstock plan --out
PLAN. It shows a step as it was planned and as it ran, on one time axis, with the bytes of
each device; loss, accuracy, learning rate and speed over the steps; the layers and their
costs; and with --checkpoint optimal the time of a step over memory.

The page is one file that loads nothing. It can be written while the run goes on; penstock
train --dashboard shows it live.`,
		Example: `  penstock report out/run --out report.html
  penstock report plan.json --out plan.html`,
		Args: filesNamed("DIR, or PLAN,"),
	}
	return resultVerb(cmd, "`FILE` to write, of HTML", func(cmd *cobra.Command, args []string) (r result,
		err error) {
		if err := need(cmd, "out"); err != nil {
			return r, err
		}
		page, err := readPage(cmd, args[0])
		if err != nil {
			return r, err
		}
		for _, c := range page.Run.Chains {
			points, err := solver.Curve(cmd.Context(), c.Chain, solver.Options{})
			if err != nil {
				return r, err
			}
			page.Curves = append(page.Curves, report.NewCurve(c.Stage, c.Chain, points, page.Run.Plan))
		}
		text, err := page.HTML()
		what := page.Run.Title
		if n := len(page.History.Steps); n > 0 {
			what += ": " + counted(n, "step")
		}
		return result{what, func(w io.Writer) { fmt.Fprintln(w, what) }, text}, err
	})
}

// readPage reads a plan, or the recorded step and the metrics of a run. A run may lack either.
func readPage(cmd *cobra.Command, from string) (page report.Page, err error) {
	refuse := func(problem string) error {
		return badUsage("%s: %s; want the directory of a run, which penstock train --out has written, or a "+
			"file of penstock plan --out", from, problem)
	}
	if info, err := os.Stat(from); err == nil && !info.IsDir() {
		line, err := readParsed(cmd, from, func(text []byte) (line struct{ Page report.Run }, err error) {
			return line, json.Unmarshal(text, &line)
		})
		if page.Run = line.Page; err == nil && page.Run.Plan == nil {
			err = refuse("there is no plan in it to show")
		}
		return page, err
	}
	var noStep, noNumbers error
	page.Run, noStep = report.ReadFile(filepath.Join(from, report.FileName))
	page.History, noNumbers = metrics.Read(filepath.Join(from, metrics.FileName))
	for _, err := range []error{noStep, noNumbers} {
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return page, wrongInput(err)
		}
	}
	if noStep != nil {
		page.Run.Title = filepath.Base(from)
		if len(page.History.Steps) == 0 {
			return page, refuse("no step of a run there")
		}
	}
	return page, nil
}

// stepToRecord returns the step to record for the page and the trace; 0 is none. The first two steps touch
// fresh memory, and an epoch's last batch may be smaller.
func (j *job) stepToRecord() int64 {
	l, accumulate := &j.loop, max(j.accumulate, 1)
	if j.traceFile == "" && j.out == "" && j.dashboardAt == "" {
		return 0
	}
	steps := func(batches int) int64 { return int64((batches + accumulate - 1) / accumulate) }
	epoch, left := steps(l.Loader.Batches()), steps(l.Loader.Batches()-l.Loader.Position().Batch)
	for _, k := range []int64{3, 4, 2, 1} {
		if l.Step+k <= j.last && (l.Loader.LastBatch() == j.batch || (k-left)%epoch != 0) {
			return l.Step + k
		}
	}
	return min(l.Step+3, j.last)
}

func (j *job) openTrace(context.Context, io.Writer) error {
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
		return writeFile(j.traceFile, draw.SVG(*j.page.Ran, draw.Options{Workers: workers, Bytes: formatBytes,
			Title: fmt.Sprintf("step %d", j.recorded)}))
	}
	return writeFile(j.traceFile, trace.JSON(*j.page.Ran, workers))
}
