package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"penstock.example/metrics"
	"penstock.example/report"
)

func newReport() *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use:   "report DIR|PLAN --out FILE.html",
		Short: "Write a page about a run or a plan, to look at in a browser",
		Long: `Write a page about a run, from what penstock train --out DIR has kept: the schedule
of a step as it was planned and as it ran, on one time axis, and the bytes of each
device over it; how long devices stood idle; loss, accuracy, learning rate and speed
over the steps; the layers, with what they cost and whether they are computed again;
and, where --checkpoint optimal has measured them, how time depends on memory.

PLAN is a file of penstock plan --out. Its page has the step as it is planned, and the
schedules that were searched.

The page is one file. It loads nothing and sends nothing. It can be written while the
run goes on; penstock train --dashboard shows the same page live.`,
		Example: `  penstock report out/run --out report.html
  penstock report plan.json --out plan.html`,
		Args: filesNamed("DIR, or PLAN,"),
		RunE: interruptible("solving", func(cmd *cobra.Command, args []string) error {
			if err := need(cmd, "out"); err != nil {
				return err
			}
			from := args[0]
			info, err := os.Stat(from)
			if err != nil {
				return badUsage("%s: no such file or directory; %s", from, wantRun)
			}
			read := pageOfPlan
			if info.IsDir() {
				read = pageOfRun
				if filepath.Ext(out) != ".html" && within(info, out) {
					return badUsage("--out %s is in the directory of the run, which has files of its own; "+
						"want a name there that ends in .html, or another directory", out)
				}
			}
			if err := checkOut(cmd, out, from); err != nil {
				return err
			}
			page, err := read(cmd, from)
			if err != nil {
				return err
			}
			if page.Curves, err = curvesOf(cmd.Context(), page.Run); err != nil {
				return err
			}
			var text bytes.Buffer
			if err := report.Write(&text, page); err != nil {
				return err
			}
			if err := writeOut(cmd, out, text.Bytes()); err != nil || standardOutput(cmd, out) != nil {
				return err
			}
			what := "a planned step"
			if info.IsDir() {
				what = counted(len(page.History.Steps), "step")
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s in %s\n", page.Run.Title, what, out)
			return err
		}),
	}
	path(cmd.Flags(), &out, "out", "`FILE` to write, of HTML")
	return cmd
}

const wantRun = "want the directory of a run, which penstock train --out has written, or a file of penstock " +
	"plan --out"

// within reports whether a path is below a directory.
func within(dir fs.FileInfo, path string) bool {
	for at := filepath.Dir(path); ; at = filepath.Dir(at) {
		if info, err := os.Stat(at); err == nil && os.SameFile(info, dir) {
			return true
		}
		if at == filepath.Dir(at) {
			return false
		}
	}
}

// pageOfPlan reads the page of a file of penstock plan.
func pageOfPlan(cmd *cobra.Command, path string) (page report.Page, err error) {
	text, err := readInput(cmd, path)
	if err != nil {
		return page, err
	}
	var line struct {
		Page json.RawMessage `json:"page"`
	}
	if err := json.Unmarshal(text, &line); err != nil {
		return page, badUsage("%s is no plan: %w; %s", path, err, wantRun)
	}
	if line.Page == nil {
		return page, badUsage("%s: there is no plan in it to show; %s", path, wantRun)
	}
	if err := json.Unmarshal(line.Page, &page.Run); err != nil {
		return page, badUsage("%s: page: %s", path, message(err))
	}
	return page, nil
}

// pageOfRun reads the files of a run. A run without a recorded step has its numbers.
func pageOfRun(_ *cobra.Command, dir string) (page report.Page, err error) {
	page.Run, err = report.ReadFile(filepath.Join(dir, report.FileName))
	noRun := errors.Is(err, fs.ErrNotExist)
	if err != nil && !noRun {
		return page, wrongInput(err)
	}
	page.History, err = metrics.Read(filepath.Join(dir, metrics.FileName))
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return page, wrongInput(err)
	case noRun && len(page.History.Steps) == 0:
		return page, badUsage("%s has no step of a run; %s", dir, wantRun)
	case noRun:
		page.Run.Title = filepath.Base(dir)
	}
	return page, nil
}

// curvesOf computes how the time of a micro-batch depends on memory, on each stage with a measured chain.
func curvesOf(ctx context.Context, run report.Run) (curves []report.Curve, err error) {
	for _, c := range run.Chains {
		points, err := rematCurve(ctx, c.Chain)
		if err != nil {
			return nil, err
		}
		curves = append(curves, report.NewCurve(c.Stage, c.Chain, points, run.Plan))
	}
	return curves, nil
}
