package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"penstock.example/internal/planfile"
	"penstock.example/internal/solver"
	"penstock.example/remat"
)

func newRemat() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "remat",
		Short: "Plan what to keep and what to compute again under a memory limit",
		Long: `Plan what to keep and what to compute again on one device, so that a training step
takes the least time under a limit of bytes.

CHAIN is a file of penstock profile, with the times and bytes of each layer. Or write one:

  {"version":1,
  "input_bytes":602112,
  "layers":[
  {"name":"conv1","forward_us":812.5,"backward_us":1650,"output_bytes":3211264,
   "saved_bytes":3211264,"forward_tmp_bytes":0,"backward_tmp_bytes":0}
  ],
  "loss":{"backward_us":3.5,"tmp_bytes":0}}

A plan is a list of operations on the layers. Its limit is for the input, activations,
gradients and temporaries. The file name - is standard input.`,
		Example: `  penstock remat solve chain.json --limit 700MiB --out plan.json
  penstock remat curve chain.json --out curve.svg`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newRematSolve(), newRematExplain(), newRematCompare(), newRematCurve(), newRematCheck())
	return cmd
}

func newRematSolve() *cobra.Command {
	var limit int64
	cmd := &cobra.Command{
		Use:   "solve CHAIN --limit SIZE [flags]",
		Short: "Find the fastest plan under a limit",
		Long: `Find the fastest plan whose peak is at most the limit. The plan of a chain of some
dozens of layers is the fastest of all; for longer chains a lower bound is printed.

If no plan stays under the limit the exit code is 1, and the least limit is printed.`,
		Example: `  penstock remat solve chain.json --limit 700MiB --out plan.json`,
		Args:    filesNamed("CHAIN"),
	}
	limitFlag(cmd, &limit)
	return resultVerb(cmd, "`FILE` to write the plan to, as JSON",
		func(cmd *cobra.Command, args []string) (r result, err error) {
			c, p, err := solveFile(cmd, args[0], limit)
			if err != nil {
				return r, err
			}
			if r.file, err = planfile.FormatPlan(p); err != nil {
				return r, err
			}
			report, err := remat.Check(c, p.Ops)
			if err != nil {
				return r, err
			}
			r.line, r.text = r.file, func(w io.Writer) {
				showPlan(w, c, p, report)
				row(w, "", "no plan under the limit takes less than "+micros(p.LowerBound))
				fmt.Fprintf(w, "recomputed\t%d forwards, of %d layers\n", report.Recomputed, len(c.Layers))
			}
			return r, err
		})
}

func limitFlag(cmd *cobra.Command, limit *int64) {
	size(cmd.Flags(), limit, "limit", "most memory, as a `SIZE` such as 700MiB")
}

// solveFile finds the plan of a chain in a file, or says why there is none.
func solveFile(cmd *cobra.Command, file string, limit int64) (c remat.Chain, p remat.Plan, err error) {
	if c, err = readChain(cmd, file, "limit"); err == nil {
		p, err = solveUnder(cmd.Context(), c, limit)
	}
	return c, p, err
}

func solveUnder(ctx context.Context, c remat.Chain, limit int64) (remat.Plan, error) {
	p, err := solver.Solve(ctx, c, limit, solver.Options{})
	if err != nil || p.Feasible {
		return p, err
	}
	least, err := solver.ExplainLeast(c)
	if err != nil {
		return p, err
	}
	return p, fmt.Errorf("no plan stays under %s (%d bytes); the least is %s (%d bytes), which %s needs: %s",
		formatBytes(limit), limit, formatBytes(least.Bytes), least.Bytes, opName(c, least.Op),
		partsOf(least.Parts))
}

// showPlan prints the peak and the time of a plan.
func showPlan(w io.Writer, c remat.Chain, p remat.Plan, report remat.Report) {
	fmt.Fprintf(w, "peak\t%s of %s (%d bytes), in %s:\n", formatBytes(p.Peak), formatBytes(p.Limit), p.Peak,
		opName(c, p.Ops[report.PeakOp]))
	row(w, "", partsOf(report.AtPeak))
	fmt.Fprintf(w, "time\t%s, %s on computing everything once\n", micros(report.Time),
		percent(report.Extra, report.Time-report.Extra))
}

func newRematExplain() *cobra.Command {
	var limit int64
	cmd := &cobra.Command{
		Use:   "explain CHAIN --limit SIZE [flags]",
		Short: "Say what the plan under a limit keeps, and what more would save",
		Long: `Find the fastest plan under a limit and say of each layer what is kept from its forward
to its backward (everything, its input, or nothing), how often its forward runs again, and
the bytes and time that this takes. Also printed are the least limit that has a plan and
the layer that sets it, the limit from which on nothing is computed again, and what 10 MB,
100 MB and 1 GB more would save.`,
		Example: `  penstock remat explain chain.json --limit 700MiB`,
		Args:    filesNamed("CHAIN"),
	}
	limitFlag(cmd, &limit)
	return resultVerb(cmd, "", func(cmd *cobra.Command, args []string) (result, error) {
		c, p, err := solveFile(cmd, args[0], limit)
		if err != nil {
			return result{}, err
		}
		least, err := solver.ExplainLeast(c)
		if err != nil {
			return result{}, err
		}
		e, err := remat.Explain(cmd.Context(), c, p, least, explainedBytes,
			func(ctx context.Context, limit int64) (remat.Plan, error) {
				return solver.Solve(ctx, c, limit, solver.Options{})
			})
		return result{line: explanationLine{p.Limit, p.Peak, p.Time, e.Report.Recomputed, least.Bytes,
			e.Plain.Peak, e.Layers, e.More}, text: func(w io.Writer) { showExplanation(w, c, e) }}, err
	})
}

// explainedBytes are how much more memory explain looks at.
var explainedBytes = []int64{10e6, 100e6, 1000e6}

// explanationLine is the JSON of an explanation.
type explanationLine struct {
	Limit      int64                    `json:"limit_bytes"`
	Peak       int64                    `json:"peak_bytes"`
	Time       float64                  `json:"time_us"`
	Recomputed int                      `json:"recomputed"`
	Least      int64                    `json:"least_limit_bytes"`
	Greatest   int64                    `json:"greatest_limit_bytes"`
	Layers     []remat.LayerExplanation `json:"layers"`
	More       []remat.Step             `json:"more"`
}

func showExplanation(w io.Writer, c remat.Chain, e remat.Explanation) {
	row(w, "", "LAYER", "KEEPS", "HELD", "AGAIN", "TIME", "EXTRA")
	for i, l := range e.Layers {
		row(w, i, l.Name, l.Keeps, formatBytes(l.Held), l.Recomputed, micros(l.Time), micros(l.Extra))
	}
	r := e.Report
	row(w, "", fmt.Sprint("all ", len(e.Layers)), "", formatBytes(r.Held), r.Recomputed, micros(r.Time),
		micros(r.Extra))
	fmt.Fprintln(w)
	showPlan(w, c, e.Plan, r)
	showLimits(w, c, e.Least, e.Plain.Peak)
	for i, m := range e.More {
		if i > 0 && m.Time == e.More[i-1].Time {
			break // nothing more to be had
		}
		fmt.Fprintf(w, "%d MB\tmore would save %s (%.1f %%)\n", explainedBytes[i]/1e6, micros(m.Saved),
			part(m.Saved, r.Time))
	}
}

// showLimits prints between which limits a chain has different plans.
func showLimits(w io.Writer, c remat.Chain, least remat.LeastLimit, greatest int64) {
	fmt.Fprintf(w, "least\t%s (%d bytes), set by %s: %s\n", formatBytes(least.Bytes), least.Bytes,
		opName(c, least.Op), partsOf(least.Parts))
	fmt.Fprintf(w, "greatest\t%s (%d bytes), from which on nothing is computed again\n",
		formatBytes(greatest), greatest)
}

func newRematCompare() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "compare CHAIN [flags]",
		Short: "Compare usual strategies with the best plans at the same memory",
		Long: `Compare the usual strategies with the fastest plans at the same peak:

  none           nothing is computed again
  sequential     PyTorch's checkpoint_sequential: 2 to 2*sqrt(layers) segments
  revolve        Revolve, with 2 to 2*sqrt(layers) inputs kept at a time
  all            only the input is kept

A row is left out if another of its strategy takes less memory and time. GAIN is how many
more steps the best plan does in the same time.`,
		Example: `  penstock remat compare chain.json`,
		Args:    filesNamed("CHAIN"),
	}
	return resultVerb(cmd, "", func(cmd *cobra.Command, args []string) (r result, err error) {
		c, err := readChain(cmd, args[0])
		if err != nil {
			return r, err
		}
		usual, err := remat.Baselines(c)
		if err != nil {
			return r, err
		}
		curve, err := solver.Curve(cmd.Context(), c, solver.Options{})
		over := func(us float64) float64 { return part(us-c.Once(), c.Once()) / 100 }
		lines, none := []comparedLine{}, int64(0)
		for _, b := range usual {
			best := solver.Point{Peak: b.Peak, Time: b.Time}
			for _, p := range curve {
				if p.Peak <= b.Peak && p.Time <= best.Time {
					best = p
				}
			}
			lines = append(lines, comparedLine{b.Strategy, b.Segments + b.Checkpoints, b.Peak, b.Time,
				over(b.Time),
				best.Peak, best.Time, over(best.Time), part(b.Time-best.Time, best.Time) / 100})
			if b.Strategy == "none" {
				none = b.Peak
			}
		}
		return result{line: lines, text: func(w io.Writer) {
			row(w, "STRATEGY", "PEAK", "OF NONE", "TIME", "OVERHEAD", "BEST PLAN", "OVERHEAD", "GAIN")
			for _, l := range lines {
				name := l.Strategy
				if l.Parts > 0 {
					name = fmt.Sprint(name, " ", l.Parts)
				}
				row(w, name, formatBytes(l.Peak),
					fmt.Sprintf("%.0f %%", part(float64(l.Peak), float64(none))), micros(l.Time),
					percent(l.Overhead, 1), micros(l.OptimumTime), percent(l.OptimumOverhead, 1),
					percent(l.Gain, 1))
			}
		}}, err
	})
}

// comparedLine is the JSON of a strategy. Overheads are parts of the time of computing everything once.
type comparedLine struct {
	Strategy        string  `json:"strategy"`
	Parts           int     `json:"parts,omitempty"` // segments of sequential, inputs that revolve keeps
	Peak            int64   `json:"peak_bytes"`
	Time            float64 `json:"time_us"`
	Overhead        float64 `json:"overhead"`
	OptimumPeak     int64   `json:"optimum_peak_bytes"`
	OptimumTime     float64 `json:"optimum_time_us"`
	OptimumOverhead float64 `json:"optimum_overhead"`
	Gain            float64 `json:"gain"`
}

func newRematCurve() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "curve CHAIN --out FILE.svg",
		Short: "Draw the time of the best plans over memory",
		Long: `Draw how much longer a step takes the less memory it may use, beside what the usual
strategies take (see penstock remat compare), up to 120 % longer.`,
		Example: `  penstock remat curve chain.json --out curve.svg`,
		Args:    filesNamed("CHAIN"),
	}
	return fileVerb(cmd, "`FILE` to draw to, as SVG", func(cmd *cobra.Command, args []string) (r result,
		err error) {
		c, err := readChain(cmd, args[0])
		if err != nil {
			return r, err
		}
		points, err := solver.Curve(cmd.Context(), c, solver.Options{})
		if err != nil {
			return r, err
		}
		usual, err := remat.Baselines(c)
		if err != nil {
			return r, err
		}
		r.file, err = drawCurve(chainTitle(c, args[0])+", "+counted(len(c.Layers), "layer"), c, points, usual)
		r.text = func(w io.Writer) {
			fmt.Fprintf(w, "%d plans from %s to %s\n", len(points), formatBytes(points[0].Peak),
				formatBytes(points[len(points)-1].Peak))
		}
		return r, err
	})
}

func newRematCheck() *cobra.Command {
	return &cobra.Command{
		Use:   "check CHAIN PLAN",
		Short: "Check that a plan does what it says",
		Long: `Replay a plan on the costs of a chain, and check that each operation is allowed, that
the plan is complete, and that its peak and time are as it says. If not, the exit code is 1.`,
		Example: `  penstock remat check chain.json plan.json`,
		Args:    filesNamed("CHAIN", "PLAN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if isStdin(args[0]) && isStdin(args[1]) {
				return badUsage("CHAIN and PLAN are both -; want at least one of them in a file")
			}
			c, err := readChain(cmd, args[0])
			if err != nil {
				return err
			}
			p, err := readParsed(cmd, args[1], planfile.ParsePlan)
			if err != nil {
				return err
			}
			if err := remat.CheckPlan(c, p); err != nil {
				return fmt.Errorf("the plan does not hold: %s", message(err))
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "the plan holds: %d operations, peak %s, time %s\n",
				len(p.Ops), formatBytes(p.Peak), micros(p.Time))
			return err
		},
	}
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
	}{
		{b.Inputs, "inputs"}, {b.Saved, "saved"}, {b.Gradients, "gradients"},
		{b.WeightGradients, "gradients of weights"}, {b.Made, "made"}, {b.Tmp, "temporary"},
	} {
		if p.bytes > 0 {
			parts = append(parts, formatBytes(p.bytes)+" "+p.name)
		}
	}
	return strings.Join(parts, " + ")
}
