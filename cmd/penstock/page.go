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
	"strings"
	"time"

	"github.com/spf13/cobra"

	"penstock.example/internal/arg"
	"penstock.example/metrics"
	"penstock.example/remat"
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
and, where --checkpoint optimal has measured them, how time depends on memory. For how
a whole step does, the plan's cut and schedule are planned under up to 12 limits, as
many as can be in 10 seconds.

PLAN is a file of penstock plan --out. Its page has the step as it is planned, and the
schedules that were searched.

The page is one file. It loads nothing and sends nothing. It can be written while the
run goes on; penstock train --dashboard shows the same page live.`,
		Example: `  penstock report out/run --out report.html
  penstock report plan.json --out plan.html`,
		Args: filesNamed("DIR, or PLAN,"),
		RunE: interruptible("solving", func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("out") {
				return badUsage("--out is needed: the file to write, such as report.html")
			}
			from := args[0]
			inputs := []string{from, filepath.Join(from, report.FileName), filepath.Join(from, metrics.FileName)}
			if err := keepInputs(cmd.InOrStdin(), "out", out, inputs...); err != nil {
				return err
			}
			if err := keepRun(from, out); err != nil {
				return err
			}
			if err := probeOut(cmd, out); err != nil {
				return err
			}
			page, err := pageOf(cmd, from)
			if err != nil {
				return err
			}
			var text bytes.Buffer
			if err := report.Write(&text, page); err != nil {
				return err
			}
			if err := writeOut(cmd, out, text.Bytes()); err != nil {
				return err
			}
			if standardOutput(cmd, out) != nil {
				return nil
			}
			what := counted(len(page.History.Steps), "step")
			if isFile(from) {
				what = "a planned step"
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s in %s\n", page.Run.Title, what, out)
			return err
		}),
	}
	path(cmd.Flags(), &out, "out", "`FILE` to write, of HTML")
	return cmd
}

// isFile says whether a path is of something other than a directory: of a plan, not of a run.
func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir()
}

// keepRun refuses a page that would be, or replace, another file in the directory of a run.
func keepRun(dir, out string) error {
	run, err := os.Stat(dir)
	if err != nil || !run.IsDir() || filepath.Ext(out) == ".html" {
		return nil
	}
	for at := filepath.Dir(out); ; at = filepath.Dir(at) {
		if info, err := os.Stat(at); err == nil && os.SameFile(info, run) {
			return badUsage("--out %s is in the directory of the run, which has files of its own; want a name there that ends in .html, or another directory", out)
		}
		if at == filepath.Dir(at) {
			return nil
		}
	}
}

// pageOf reads the page of a plan or a run.
func pageOf(cmd *cobra.Command, from string) (page report.Page, err error) {
	if _, err := os.Stat(from); errors.Is(err, fs.ErrNotExist) {
		return page, badUsage("%s: no such file or directory; want the directory of a run, or a file of penstock plan --out", from)
	}
	if isFile(from) {
		page.Run, err = pageOfPlan(cmd, from)
	} else {
		page, err = pageOfRun(from)
	}
	if err != nil {
		return page, err
	}
	return page, curvesOf(cmd.Context(), &page)
}

// pageOfPlan reads what a file of penstock plan has for a page.
func pageOfPlan(cmd *cobra.Command, path string) (report.Run, error) {
	text, err := readInput(cmd, path)
	if err != nil {
		return report.Run{}, err
	}
	const want = "want the directory of a run, or a file that penstock plan has written with --out"
	if err := arg.JSON(text); err != nil {
		return report.Run{}, badUsage("%s is no plan: %w; "+want, path, err)
	}
	var line struct {
		Page json.RawMessage `json:"page"`
	}
	if json.Unmarshal(text, &line) != nil || arg.Absent(line.Page) { // an array, or of something else
		return report.Run{}, badUsage("%s: there is no plan in it to show; "+want, path)
	}
	var page report.Run
	if err := json.Unmarshal(line.Page, &page); err != nil {
		why := message(err)
		if wrong := new(json.UnmarshalTypeError); errors.As(err, &wrong) { // which names types of Go
			why = strings.TrimPrefix(fmt.Sprintf("%s is not to be a JSON %s", wrong.Field, wrong.Value), " is ")
		}
		return report.Run{}, badUsage("%s: page: %s; want what penstock plan has written", path, why)
	}
	return page, nil
}

// pageOfRun reads what a run has kept. A run that has not recorded a step yet has its numbers.
func pageOfRun(dir string) (page report.Page, err error) {
	page.Run, err = report.ReadFile(filepath.Join(dir, report.FileName))
	noRun := errors.Is(err, fs.ErrNotExist)
	if err != nil && !noRun {
		return page, wrongInput(err)
	}
	page.History, err = metrics.Read(filepath.Join(dir, metrics.FileName))
	switch noNumbers := errors.Is(err, fs.ErrNotExist); {
	case noRun && noNumbers:
		return page, badUsage("%s has neither %s nor %s; want the directory of a run, which penstock train --out has written, or a file of penstock plan --out", dir, report.FileName, metrics.FileName)
	case err != nil && !noNumbers:
		return page, wrongInput(err)
	case noRun && len(page.History.Steps) == 0:
		return page, badUsage("%s has no step of a run yet, and there is nothing to show; want a run that has taken one", dir)
	}
	if noRun {
		page.Run.Title = filepath.Base(dir)
	}
	return page, nil
}

// The curve of a step has at most so many points, and those that are found in this time.
const (
	stepPoints   = 12
	stepPatience = 10 * time.Second
)

// curvesOf computes how time depends on memory: of a micro-batch on each stage whose chain is known, and
// of a step where all are.
func curvesOf(ctx context.Context, page *report.Page) error {
	plan := page.Run.Plan
	var chains []remat.Chain
	for _, c := range page.Run.Chains {
		points, err := rematCurve(ctx, c.Chain)
		if err != nil {
			return err
		}
		page.Curves = append(page.Curves, report.NewCurve(c.Stage, c.Chain, points, plan))
		chains = append(chains, c.Chain)
	}
	if plan == nil || len(chains) != len(plan.Stages) {
		return nil
	}
	some, cancel := context.WithTimeout(ctx, stepPatience)
	defer cancel()
	points, err := plan.OverLimits(some, chains, stepPoints)
	if err != nil || len(points) == 0 {
		return ctx.Err() // a plan that does not say enough, such as one of other chains, has no curve
	}
	planned := time.Duration(0)
	if page.Run.Planned != nil {
		planned = page.Run.Planned.Makespan()
	}
	page.Step = report.NewStepCurve(points, plan, planned)
	return nil
}
