package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/spf13/cobra"

	"penstock.example/remat"
	"penstock.example/remat/planfile"
	"penstock.example/remat/solver"
)

func newRematSolve() *cobra.Command {
	var limit int64
	var options solver.Options
	var format, out string
	cmd := &cobra.Command{
		Use:   "solve CHAIN --limit SIZE [flags]",
		Short: "Find the fastest plan under a limit",
		Long: `Find the fastest plan that stays under a limit. The bytes are exact: if there is a
plan, one is found, and its peak is never above the limit. Chains of some dozens of
layers are solved exactly; for longer ones, how far from the fastest of all the plan
may be is told, and as a rule below a thousandth.

CHAIN is a file, or - for standard input. If no plan stays under the limit the exit
code is 1, the least limit is told, and nothing is written.`,
		Example: `  penstock remat solve chain.json --limit 700MiB
  penstock remat solve chain.json --limit 700MiB --out plan.json
  penstock remat solve - --limit 1.5GB --format json < chain.json`,
		Args: filesNamed("CHAIN"),
		RunE: interruptible("solving", func(cmd *cobra.Command, args []string) error {
			if err := keepInputs(cmd.InOrStdin(), "out", out, args[0]); err != nil {
				return err
			}
			if out != "" {
				if err := probeOut(cmd, out); err != nil {
					return err
				}
			}
			c, err := readChain(cmd, args[0])
			if err != nil {
				return err
			}
			p, err := solveUnder(cmd.Context(), c, limit, options)
			if err != nil {
				return err
			}
			text, err := planfile.FormatPlan(p)
			if err != nil {
				return err
			}
			if out != "" {
				if err := writeOut(cmd, out, text); err != nil {
					return err
				}
			}
			if format == "json" {
				_, err = cmd.OutOrStdout().Write(text)
				return err
			}
			return showPlan(cmd.OutOrStdout(), c, p)
		}),
	}
	cmd.Flags().SortFlags = false
	limitFlag(cmd, &limit)
	count(cmd.Flags(), &options.Slots, "slots", 0,
		"`N` numbers of bytes that the first table of a chain that is not solved exactly tells apart (default 500); finer ones follow where that is too coarse; chains of more than 250 layers have no tables")
	path(cmd.Flags(), &out, "out", "`FILE` to write the plan to, as JSON")
	tableOrJSON(cmd.Flags(), &format, "table, or json for the plan as --out has it")
	return cmd
}

// solveUnder finds a plan, or says why there is none.
func solveUnder(ctx context.Context, c remat.Chain, limit int64, o solver.Options) (remat.Plan, error) {
	p, err := solver.Solve(ctx, c, limit, o)
	if err != nil {
		return p, err
	}
	if !p.Feasible {
		least, err := solver.ExplainLeast(c)
		if err != nil {
			return p, err
		}
		return p, noPlanError(limit, least, c)
	}
	if err := remat.CheckPlan(c, p); err != nil {
		return p, fmt.Errorf("the plan found does not hold, which is a fault of penstock: %s", message(err))
	}
	return p, nil
}

// solveEach is Solve for those who ask for plans of a chain under several limits.
func solveEach(c remat.Chain, o solver.Options) func(context.Context, int64) (remat.Plan, error) {
	return func(ctx context.Context, limit int64) (remat.Plan, error) { return solver.Solve(ctx, c, limit, o) }
}

// longChain is the number of layers up to which many searches, each for one limit and as good as
// any, take less than a minute.
const longChain = 120

// bestPlans is for those who ask for plans under many limits: by one table if that is exact, else
// by a search for each, or for long chains by the table all the same, whose plans are slower by a
// few thousandths.
func bestPlans(ctx context.Context, c remat.Chain) (func(context.Context, int64) (remat.Plan, error), error) {
	table, err := solver.NewTable(ctx, c, 0, solver.Options{})
	switch {
	case err != nil:
		return nil, err
	case !table.Exact() && len(c.Layers) <= longChain:
		return solveEach(c, solver.Options{Steps: -1}), nil // which the table has not sufficed for
	}
	return func(ctx context.Context, limit int64) (remat.Plan, error) { return table.Plan(limit), ctx.Err() }, nil
}

// showPlan shows a plan that has been checked.
func showPlan(w io.Writer, c remat.Chain, p remat.Plan) error {
	report, err := remat.Check(c, p.Ops)
	if err != nil {
		return err
	}
	t := newTable(w)
	fmt.Fprintf(t, "peak\t%s of %s (%d bytes), in %s\n", formatBytes(p.Peak), formatBytes(p.Limit), p.Peak,
		opName(c, p.Ops[report.PeakOp]))
	fmt.Fprintf(t, "\t%s\n", partsOf(report.AtPeak))
	fmt.Fprintf(t, "time\t%s, %s on computing everything once\n", micros(p.Time), percent(report.Extra, report.Time-report.Extra))
	fmt.Fprintf(t, "\tno plan under the limit takes less than %s\n", micros(p.LowerBound))
	fmt.Fprintf(t, "recomputed\t%d forwards, of %d layers\n", report.Recomputed, len(c.Layers))
	fmt.Fprintf(t, "chain\t%s\n", p.Chain)
	if err := t.Flush(); err != nil {
		return err
	}
	var size remat.DrawConfig // its own width, where there is no terminal
	if width, live := terminalWidth(w); live {
		size.Width = width
	}
	drawing, err := remat.Draw(c, p.Ops, size)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "\n%s\nF forward, K keeping the input, S saving; lower case: again; B backward, L loss;\n# all of the layer is there, o its input\n", drawing)
	return err
}

// opName is an operation in words.
func opName(c remat.Chain, o remat.Op) string {
	if o.Kind == remat.LossStep {
		return "the loss"
	}
	return fmt.Sprintf("%v of layer %d, %s", o.Kind, o.Layer, c.Layers[o.Layer].Name)
}

// partsOf lists the parts of a number of bytes.
func partsOf(b remat.Breakdown) string {
	var parts []string
	for _, p := range []struct {
		bytes int64
		name  string
	}{{b.Inputs, "inputs"}, {b.Saved, "saved"}, {b.Gradients, "gradients"}, {b.WeightGradients,
		"gradients of weights"}, {b.Made, "made"}, {b.Tmp, "temporary"}} {
		if p.bytes > 0 {
			parts = append(parts, formatBytes(p.bytes)+" "+p.name)
		}
	}
	return strings.Join(parts, " + ")
}

// micros is microseconds for reading.
func micros(us float64) string {
	switch {
	case us >= 1e6:
		return fmt.Sprintf("%.3f s", us/1e6)
	case us >= 1e3:
		return fmt.Sprintf("%.2f ms", us/1e3)
	}
	return fmt.Sprintf("%.3g us", us)
}

// percent is how much more a is than nothing, as a part of b.
func percent(a, b float64) string { return signedPercent(part(a, b)) }

// part is a in hundredths of b.
func part(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return 100 * a / b
}

// signedPercent writes hundredths with their sign, but none of what is rounded to nothing.
func signedPercent(hundredths float64) string {
	if math.Abs(hundredths) < 0.05 {
		return "0.0 %"
	}
	return fmt.Sprintf("%+.1f %%", hundredths)
}
