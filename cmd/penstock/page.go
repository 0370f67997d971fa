package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/spf13/cobra"

	"penstock/metrics"
	"penstock/report"
)

func newReport() *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use:   "report DIR --out FILE.html",
		Short: "Write a page about a run, to look at in a browser",
		Long: `Write a page about a run, from what penstock train --out DIR has kept: the schedule
of a step as it was planned and as it ran, on one time axis, and the bytes of each
device over it; how long devices stood idle; loss, accuracy, learning rate and speed
over the steps; the layers, with what they cost and whether they are computed again;
and, where --checkpoint optimal has measured them, how time depends on memory.

The page is one file. It loads nothing and sends nothing. It can be written while the
run goes on; penstock train --dashboard shows the same page live.`,
		Example: `  penstock report out/run --out report.html`,
		Args:    filesNamed("DIR"),
		RunE: interruptible("solving", func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("out") {
				return badUsage("--out is needed: the file to write, such as report.html")
			}
			dir := args[0]
			inputs := []string{filepath.Join(dir, report.FileName), filepath.Join(dir, metrics.FileName)}
			if err := keepInputs(cmd.InOrStdin(), "out", out, inputs...); err != nil {
				return err
			}
			if err := probeOut(cmd, out); err != nil {
				return err
			}
			page, err := pageOf(cmd.Context(), dir)
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
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s in %s\n", page.Run.Title, counted(len(page.History.Steps), "step"), out)
			return err
		}),
	}
	path(cmd.Flags(), &out, "out", "`FILE` to write, of HTML")
	return cmd
}

// pageOf reads what a run has kept. A run that has not recorded a step yet has its numbers.
func pageOf(ctx context.Context, dir string) (page report.Page, err error) {
	page.Run, err = report.ReadFile(filepath.Join(dir, report.FileName))
	noRun := errors.Is(err, fs.ErrNotExist)
	if err != nil && !noRun {
		return page, err
	}
	page.History, err = metrics.Read(filepath.Join(dir, metrics.FileName))
	switch noNumbers := errors.Is(err, fs.ErrNotExist); {
	case noRun && noNumbers:
		return page, badUsage("%s has neither %s nor %s; want the directory of a run, which penstock train --out has written", dir, report.FileName, metrics.FileName)
	case err != nil && !noNumbers:
		return page, err
	}
	if noRun {
		page.Run.Title = filepath.Base(dir)
	}
	for _, c := range page.Run.Chains {
		points, err := rematCurve(ctx, c.Chain)
		if err != nil {
			return page, err
		}
		page.Curves = append(page.Curves, report.NewCurve(c.Stage, c.Chain, points, page.Run.Plan))
	}
	return page, nil
}
