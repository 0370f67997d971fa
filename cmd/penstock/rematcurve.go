package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	remat "penstock/remat/plan"
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
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case !cmd.Flags().Changed("out"):
				return badUsage("--out is needed: the file to draw to, such as curve.svg")
			case filepath.Ext(out) != ".svg":
				return badUsage("--out %q: want a name that ends in .svg", out)
			}
			c, err := readChain(cmd, args[0])
			if err != nil {
				return err
			}
			points, err := rematCurve(cmd.Context(), c)
			if err != nil {
				return interrupted(cmd, err, "solving")
			}
			baselines, err := remat.Baselines(cmd.Context(), c, remat.BaselineConfig{})
			if err != nil {
				return interrupted(cmd, err, "comparing")
			}
			title := fmt.Sprintf("%s, %d layers", filepath.Base(args[0]), len(c.Layers))
			if args[0] == "-" {
				title = fmt.Sprintf("%d layers", len(c.Layers))
			}
			svg, err := drawCurve(title, c, points, baselines)
			if err != nil {
				return err
			}
			if err := writeFile(out, svg); err != nil {
				return err
			}
			least, greatest := points[0], points[len(points)-1]
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d plans from %s (%s) to %s, drawn in %s\n", len(points), formatBytes(least.Peak), percent(least.Time-c.Once(), c.Once()), formatBytes(greatest.Peak), out)
			return err
		},
	}
	cmd.Flags().StringVar(&out, "out", "", "`FILE` to draw to, an SVG")
	return cmd
}

// curvePoint is a plan of the curve.
type curvePoint struct {
	Peak int64
	Time float64
}

// rematCurve is the best plans, by ascending peak.
func rematCurve(ctx context.Context, c remat.Chain) ([]curvePoint, error) {
	solve := solver(c, remat.Options{})
	least, err := remat.FindLeast(ctx, c, solve)
	if err != nil {
		return nil, err
	}
	plain, err := remat.Check(c, remat.None(len(c.Layers)))
	if err != nil {
		return nil, err
	}
	const limits = 100
	var points []curvePoint
	for i := range int64(limits + 1) {
		p, err := solve(ctx, max(1, least.Bytes+(plain.Peak-least.Bytes)/limits*i+(plain.Peak-least.Bytes)%limits*i/limits))
		if err != nil {
			return nil, err
		}
		if n := len(points); n == 0 || p.Time < points[n-1].Time {
			points = append(points, curvePoint{p.Peak, p.Time})
		}
	}
	return points, nil
}
