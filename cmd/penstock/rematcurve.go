package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"penstock.example/remat"
	"penstock.example/remat/solver"
)

func newRematCurve() *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use:   "curve CHAIN --out FILE.svg",
		Short: "Draw the time of the best plans over memory",
		Long: `Draw how much longer a step takes the less memory it may use, from the least that has
a plan to where nothing is computed again, and beside it what the usual strategies
take (see penstock remat compare). The picture is an SVG.

CHAIN is a file, or - for standard input.`,
		Example: `  penstock remat curve chain.json --out curve.svg`,
		Args:    filesNamed("CHAIN"),
		RunE: interruptible("solving", func(cmd *cobra.Command, args []string) error {
			switch {
			case !cmd.Flags().Changed("out"):
				return badUsage("--out is needed: the file to draw to, such as curve.svg")
			case filepath.Ext(out) != ".svg":
				return badUsage("--out %q: want a name that ends in .svg", out)
			}
			if err := keepInputs(cmd.InOrStdin(), "out", out, args[0]); err != nil {
				return err
			}
			if err := probeOut(cmd, out); err != nil {
				return err
			}
			c, err := readChain(cmd, args[0])
			if err != nil {
				return err
			}
			points, err := rematCurve(cmd.Context(), c)
			if err != nil {
				return err
			}
			usual, err := remat.Baselines(c)
			if err != nil {
				return err
			}
			svg, err := drawCurve(chainTitle(c, args[0])+counted(len(c.Layers), "layer"), c, points, usual)
			if err != nil {
				return err
			}
			if err := writeOut(cmd, out, svg); err != nil {
				return err
			}
			least, greatest := points[0], points[len(points)-1]
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d plans from %s (%s) to %s, drawn in %s\n", len(points),
				formatBytes(least.Peak), percent(least.Time-c.Once(), c.Once()), formatBytes(greatest.Peak), out)
			return err
		}),
	}
	path(cmd.Flags(), &out, "out", "`FILE` to draw to, an SVG")
	return cmd
}

// chainTitle is the model of a chain and its batch, or the file where it does not say them, with a comma
// after it; nothing of a stream.
func chainTitle(c remat.Chain, path string) string {
	switch {
	case c.Model != "" && c.Rows > 0:
		return fmt.Sprintf("%s, batch of %d, ", c.Model, c.Rows)
	case c.Model != "":
		return c.Model + ", "
	case isStdin(path):
		return ""
	}
	return filepath.Base(path) + ", "
}

// rematCurve is the best plans, by ascending peak: at least one, of plain training.
func rematCurve(ctx context.Context, c remat.Chain) ([]solver.Point, error) {
	// The more layers, the fewer slots, for the same few seconds; the table grows with
	// slots*layers^2, the time by another layers.
	n := float64(len(c.Layers))
	slots := min(max(2e10/(n*n*n), 500), 4000)
	table, err := solver.NewTable(ctx, c, 0, solver.Options{Slots: int(slots)})
	if err != nil {
		return nil, err
	}
	return table.Curve(), nil
}
