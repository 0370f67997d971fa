package command

import (
	"cmp"
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"penstock.example/internal/draw"
	"penstock.example/internal/option"
	"penstock.example/internal/planfile"
	"penstock.example/internal/solver"
	"penstock.example/remat"
)

func newRemat() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "remat",
		Short: "Plan what to keep and what to compute again under a memory limit",
		Long: `Plan which activations one device keeps and which it computes again, so that a training
step takes the least time under a memory limit.

CHAIN is a file of penstock profile, with the times and bytes of each layer. Or write one:

  {"version":1,
  "input_bytes":602112,
  "layers":[
  {"name":"conv1","forward_us":812.5,"backward_us":1650,"output_bytes":3211264,
   "saved_bytes":3211264,"forward_tmp_bytes":0,"backward_tmp_bytes":0}
  ],
  "loss":{"backward_us":3.5,"tmp_bytes":0}}

A plan is a list of operations on the layers. The limit counts the input, activations,
gradients and temporaries. The file - is standard input.`,
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
		Long: `Find the fastest plan whose peak is at most the limit. For a chain of some dozens of
layers it is the fastest of all; for a longer chain a lower bound is printed.

If no plan stays under the limit the exit code is 64, and the least limit is printed.`,
		Example: `  penstock remat solve chain.json --limit 700MiB --out plan.json`,
		Args:    arguments("CHAIN", "--limit"),
	}
	option.Size(cmd.Flags(), &limit, "limit", limitUsage)
	return resultVerb(cmd, "`FILE` to write the plan to, as JSON",
		func(cmd *cobra.Command, args []string) (r result, err error) {
			c, p, err := solveFile(cmd, args[0], limit)
			if err != nil {
				return r, err
			}
			report, err := remat.Check(c, p.Ops)
			if err != nil {
				return r, err
			}
			r.file, err = planfile.FormatPlan(p)
			r.line, r.text = r.file, func(w io.Writer) {
				showPlan(w, c, p, report)
				row(w, "", "no plan under the limit takes less than "+micros(p.LowerBound))
				fmt.Fprintf(w, "recomputed\t%d forwards, of %d layers\n", report.Recomputed, len(c.Layers))
			}
			return r, err
		})
}

const limitUsage = "most memory, as a `SIZE` such as 700MiB"

// solveFile reads a chain and finds its plan. It fails if no plan keeps the limit.
func solveFile(cmd *cobra.Command, file string, limit int64) (c remat.Chain, p remat.Plan, err error) {
	if c, err = readParsed(cmd, file, planfile.ParseChain); err == nil {
		p, err = solver.Solve(cmd.Context(), c, limit, solver.Options{})
	}
	if err == nil && !p.Feasible {
		_, least, failed := leastLimit(c)
		err = cmp.Or(failed, badUsage("no plan stays under %s (%d bytes); the least is %s",
			formatBytes(limit), limit, least))
	}
	return c, p, err
}

// leastLimit returns the least limit of a chain that has a plan. text names the operation that sets it.
func leastLimit(c remat.Chain) (bytes int64, text string, err error) {
	p, op, err := solver.Least(c)
	if err == nil {
		text = fmt.Sprintf("%s (%d bytes), set by %s", formatBytes(p.Peak), p.Peak, opName(c, op))
	}
	return p.Peak, text, err
}

func showPlan(w io.Writer, c remat.Chain, p remat.Plan, report remat.Report) {
	fmt.Fprintf(w, "peak\t%s of %s (%d bytes), in %s\n", formatBytes(p.Peak), formatBytes(p.Limit), p.Peak,
		opName(c, p.Ops[report.PeakOp]))
	fmt.Fprintf(w, "time\t%s, %s on computing everything once\n", micros(report.Time),
		percent(report.Extra, report.Time-report.Extra))
}

func newRematExplain() *cobra.Command {
	var limit int64
	cmd := &cobra.Command{
		Use:   "explain CHAIN --limit SIZE [flags]",
		Short: "Say what the plan under a limit keeps, and what more would save",
		Long: `Find the fastest plan under a limit. For each layer, print what is kept from forward to
backward, its bytes, how often the forward runs again, the layer's time and the extra time.
Then print the least and the greatest useful limit, and the time that 10 MB, 100 MB and
1 GB more would save.`,
		Example: `  penstock remat explain chain.json --limit 700MiB`,
		Args:    arguments("CHAIN", "--limit"),
	}
	option.Size(cmd.Flags(), &limit, "limit", limitUsage)
	return resultVerb(cmd, "", func(cmd *cobra.Command, args []string) (result, error) {
		c, p, err := solveFile(cmd, args[0], limit)
		if err != nil {
			return result{}, err
		}
		bytes, least, err := leastLimit(c)
		if err != nil {
			return result{}, err
		}
		e, err := remat.Explain(cmd.Context(), c, p, explainedBytes,
			func(ctx context.Context, limit int64) (remat.Plan, error) {
				return solver.Solve(ctx, c, limit, solver.Options{})
			})
		return result{line: explanationLine{p.Limit, p.Peak, p.Time, e.Report.Recomputed, bytes,
			e.Plain.Peak, e.Layers, e.More}, text: func(w io.Writer) { showExplanation(w, c, e, least) }}, err
	})
}

var explainedBytes = []int64{10e6, 100e6, 1000e6}

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

func showExplanation(w io.Writer, c remat.Chain, e remat.Explanation, least string) {
	row(w, "", "LAYER", "KEEPS", "HELD", "AGAIN", "TIME", "EXTRA")
	held := int64(0)
	for i, l := range e.Layers {
		row(w, i, l.Name, l.Keeps, formatBytes(l.Held), l.Recomputed, micros(l.Time), micros(l.Extra))
		held += l.Held
	}
	r := e.Report
	row(w, "", fmt.Sprint("all ", len(e.Layers)), "", formatBytes(held), r.Recomputed, micros(r.Time),
		micros(r.Extra))
	fmt.Fprintln(w)
	showPlan(w, c, e.Plan, r)
	showLimits(w, least, e.Plain.Peak)
	for i, m := range e.More {
		if i > 0 && m.Time == e.More[i-1].Time {
			break // more memory saves no more time
		}
		fmt.Fprintf(w, "%d MB\tmore would save %s (%.1f %%)\n", explainedBytes[i]/1e6, micros(m.Saved),
			percentOf(m.Saved, r.Time))
	}
}

func showLimits(w io.Writer, least string, greatest int64) {
	fmt.Fprintf(w, "least\t%s\ngreatest\t%s (%d bytes), from which on nothing is computed again\n",
		least, formatBytes(greatest), greatest)
}

func readCurve(cmd *cobra.Command, file string) (c remat.Chain, points []solver.Point, usual []remat.Baseline,
	err error) {
	if c, err = readParsed(cmd, file, planfile.ParseChain); err == nil {
		points, err = solver.Curve(cmd.Context(), c, solver.Options{})
	}
	if err == nil {
		usual, err = remat.Baselines(c)
	}
	return c, points, usual, err
}

func newRematCompare() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "compare CHAIN [flags]",
		Short: "Compare usual strategies with the best plans at the same memory",
		Long: `Compare the usual strategies with the fastest plans at the same peak:

  none           nothing is computed again
  sequential     PyTorch's checkpoint_sequential: 2 to 2*sqrt(layers) segments
  all            only the input is kept

A number of segments is left out if another number needs less memory and less time. OF NONE
is the peak as a share of none's peak. BEST PLAN is the time of the best plan with that peak,
and GAIN is how many more steps it takes in the same time.`,
		Example: `  penstock remat compare chain.json`,
		Args:    arguments("CHAIN"),
	}
	return resultVerb(cmd, "", func(cmd *cobra.Command, args []string) (r result, err error) {
		c, curve, usual, err := readCurve(cmd, args[0])
		if err != nil {
			return r, err
		}
		lines, none := []comparedLine{}, 0.0
		for _, b := range usual {
			best := solver.Point{Peak: b.Peak, Time: b.Time}
			for _, p := range curve {
				if p.Peak <= b.Peak && p.Time <= best.Time {
					best = p
				}
			}
			lines = append(lines, comparedLine{b, best.Peak, best.Time})
			if b.Strategy == "none" {
				none = float64(b.Peak)
			}
		}
		return result{line: lines, text: func(w io.Writer) {
			once := c.Once()
			row(w, "STRATEGY", "PEAK", "OF NONE", "TIME", "OVERHEAD", "BEST PLAN", "OVERHEAD", "GAIN")
			for _, l := range lines {
				name := l.Strategy
				if l.Segments > 0 {
					name = fmt.Sprint(name, " ", l.Segments)
				}
				row(w, name, formatBytes(l.Peak), fmt.Sprintf("%.0f %%", percentOf(float64(l.Peak), none)),
					micros(l.Time), percent(l.Time-once, once), micros(l.OptimumTime),
					percent(l.OptimumTime-once, once), percent(l.Time-l.OptimumTime, l.OptimumTime))
			}
		}}, nil
	})
}

type comparedLine struct {
	remat.Baseline
	OptimumPeak int64   `json:"optimum_peak_bytes"`
	OptimumTime float64 `json:"optimum_time_us"`
}

func newRematCurve() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "curve CHAIN --out FILE.svg",
		Short: "Draw the time of the best plans over memory",
		Long: `Draw the extra time of the fastest plans over memory, up to 120 %, and the usual strategies
of penstock remat compare.`,
		Example: `  penstock remat curve chain.json --out curve.svg`,
		Args:    arguments("CHAIN", "--out"),
	}
	return resultVerb(cmd, "`FILE` to draw to, as SVG", func(cmd *cobra.Command, args []string) (r result,
		err error) {
		c, points, usual, err := readCurve(cmd, args[0])
		if err != nil {
			return r, err
		}
		r.file, err = draw.Curve(chainTitle(c, args[0])+", "+counted(len(c.Layers), "layer"), c, points,
			usual)
		r.line, r.text = points, func(w io.Writer) {
			fmt.Fprintf(w, "%d plans from %s to %s\n", len(points), formatBytes(points[0].Peak),
				formatBytes(points[len(points)-1].Peak))
		}
		return r, err
	})
}

func newRematCheck() *cobra.Command {
	return &cobra.Command{
		Use:   "check CHAIN PLAN",
		Short: "Check that a plan is valid and has the peak and time it claims",
		Long: `Replay a plan on the costs of a chain. Check that each operation is allowed, that the
plan is complete, and that its peak and its time are right. If not, the exit code is 1.`,
		Example: `  penstock remat check chain.json plan.json`,
		Args:    arguments("CHAIN", "PLAN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := readParsed(cmd, args[0], planfile.ParseChain)
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

func opName(c remat.Chain, o remat.Op) string {
	if o.Kind == remat.LossStep {
		return "the loss"
	}
	return fmt.Sprintf("%v of layer %d, %s", o.Kind, o.Layer, c.Layers[o.Layer].Name)
}
