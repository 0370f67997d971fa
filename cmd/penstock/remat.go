package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"penstock.example/remat"
	"penstock.example/remat/planfile"
	"penstock.example/remat/solver"
)

func newRemat() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "remat",
		Short: "Plan what to keep and what to compute again under a memory limit",
		Long: `Plan what to keep and what to compute again, so that a step of training stays
under a number of bytes at the least time.

A chain is a file that says what each layer costs: times of forward and backward,
bytes of the output, of what is saved for the backward, of gradients and
temporaries. A plan is a list of operations on the layers. The limit is for all
that the chain counts: the input, activations, gradients and temporaries.

  {"version":1,
  "input_bytes":602112,
  "layers":[
  {"name":"conv1","forward_us":812.5,"backward_us":1650,"output_bytes":3211264,
   "saved_bytes":3211264,"forward_tmp_bytes":0,"backward_tmp_bytes":0}
  ],
  "loss":{"backward_us":3.5,"tmp_bytes":0}}

CHAIN and PLAN are files, or - for standard input.`,
		Example: `  penstock remat solve chain.json --limit 700MiB --out plan.json
  penstock remat explain chain.json --limit 700MiB
  penstock remat curve chain.json --out curve.svg`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newRematSolve(), newRematExplain(), newRematCompare(), newRematCurve(), newRematCheck())
	return cmd
}

func newRematSolve() *cobra.Command {
	var limit int64
	var format, out string
	cmd := &cobra.Command{
		Use:   "solve CHAIN --limit SIZE [flags]",
		Short: "Find the fastest plan under a limit",
		Long: `Find the fastest plan that stays under a limit. The bytes are exact: if there is a
plan, one is found, and its peak is never above the limit. Chains of some dozens of
layers are solved exactly. For longer ones a lower bound says how far from the
fastest of all the plan may be, as a rule below a thousandth.

If no plan stays under the limit the exit code is 1, the least limit is told, and
nothing is written.`,
		Example: `  penstock remat solve chain.json --limit 700MiB
  penstock remat solve chain.json --limit 700MiB --out plan.json
  penstock remat solve - --limit 1.5GB --format json < chain.json`,
		Args: filesNamed("CHAIN"),
		RunE: interruptible("solving", func(cmd *cobra.Command, args []string) error {
			c, err := readChain(cmd, args[0], "limit")
			if err != nil {
				return err
			}
			if out != "" {
				if err := checkOut(cmd, out, args[0]); err != nil {
					return err
				}
			}
			p, err := solveUnder(cmd.Context(), c, limit)
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
	s := cmd.Flags()
	s.SortFlags = false
	size(s, &limit, "limit", "most memory, as a `SIZE` such as 700MiB")
	path(s, &out, "out", "`FILE` to write the plan to, as JSON")
	formatFlag(s, &format)
	return cmd
}

// solveUnder finds a plan, or says why there is none.
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

func showPlan(w io.Writer, c remat.Chain, p remat.Plan) error {
	report, err := remat.Check(c, p.Ops)
	if err != nil {
		return err
	}
	var size remat.DrawConfig // its own width, without a terminal
	if width, live := terminalWidth(w); live {
		size.Width = width
	}
	drawing, err := remat.Draw(c, p.Ops, size)
	if err != nil {
		return err
	}
	return printTable(w, func(w io.Writer) {
		fmt.Fprintf(w, "peak\t%s of %s (%d bytes), in %s\n", formatBytes(p.Peak), formatBytes(p.Limit),
			p.Peak,
			opName(c, p.Ops[report.PeakOp]))
		row(w, "", partsOf(report.AtPeak))
		fmt.Fprintf(w, "time\t%s, %s on computing everything once\n", micros(p.Time),
			percent(report.Extra, report.Time-report.Extra))
		row(w, "", "no plan under the limit takes less than "+micros(p.LowerBound))
		fmt.Fprintf(w, "recomputed\t%d forwards, of %d layers\n", report.Recomputed, len(c.Layers))
		row(w, "chain", p.Chain)
		fmt.Fprintf(w, "\n%s\nF forward, K keeping the input, S saving; lower case: again; B backward, L "+
			"loss;\n"+
			"# all of the layer is there, o its input\n", drawing)
	})
}

func newRematExplain() *cobra.Command {
	var limit int64
	var format string
	cmd := &cobra.Command{
		Use:   "explain CHAIN --limit SIZE [flags]",
		Short: "Say what the plan under a limit keeps, and what more would save",
		Long: `Find the fastest plan under a limit and say, for each layer, what is kept between its
forward and its backward (everything that its backward needs, its input, or nothing),
how often its forward runs again, and the bytes and the time that this takes. Then
the least and the greatest limit that are of use, which layer sets the least, and
what 10 MB, 100 MB and 1 GB more would save.`,
		Example: `  penstock remat explain chain.json --limit 700MiB
  penstock remat explain chain.json --limit 700MiB --format json`,
		Args: filesNamed("CHAIN"),
		RunE: interruptible("solving", func(cmd *cobra.Command, args []string) error {
			c, err := readChain(cmd, args[0], "limit")
			if err != nil {
				return err
			}
			p, err := solveUnder(cmd.Context(), c, limit)
			if err != nil {
				return err
			}
			solve := func(ctx context.Context, limit int64) (remat.Plan, error) {
				return solver.Solve(ctx, c, limit, solver.Options{})
			}
			least, err := solver.ExplainLeast(c)
			if err != nil {
				return err
			}
			e, err := remat.Explain(cmd.Context(), c, p, least, explainedBytes, solve)
			if err != nil {
				return err
			}
			return printResult(cmd, format, explanationOf(c, e), func(w io.Writer) {
				showExplanation(w, c,
					e)
			})
		}),
	}
	cmd.Flags().SortFlags = false
	size(cmd.Flags(), &limit, "limit", "most memory, as a `SIZE` such as 700MiB")
	formatFlag(cmd.Flags(), &format)
	return cmd
}

// explainedBytes are how much more memory explain looks at.
var explainedBytes = []int64{10e6, 100e6, 1000e6}

// explanationLine is the JSON of an explanation. Its fields stay.
type explanationLine struct {
	Limit      int64                    `json:"limit_bytes"`
	Peak       int64                    `json:"peak_bytes"`
	Time       float64                  `json:"time_us"`
	Once       float64                  `json:"once_us"` // computing everything once
	Recomputed int                      `json:"recomputed"`
	Least      int64                    `json:"least_limit_bytes"`
	LeastLayer int                      `json:"least_limit_layer"` // the number of layers: the loss
	LeastOp    string                   `json:"least_limit_op"`
	Greatest   int64                    `json:"greatest_limit_bytes"`
	Layers     []remat.LayerExplanation `json:"layers"`
	More       []remat.Step             `json:"more"`
}

func explanationOf(c remat.Chain, e remat.Explanation) explanationLine {
	line := explanationLine{
		Limit: e.Plan.Limit, Peak: e.Plan.Peak, Time: e.Plan.Time, Once: e.Report.Time - e.Report.Extra,
		Recomputed: e.Report.Recomputed, Least: e.Least.Bytes, LeastLayer: e.Least.Op.Layer,
		LeastOp: e.Least.Op.Kind.String(), Greatest: e.Plain.Peak, Layers: e.Layers, More: e.More,
	}
	if e.Least.Op.Kind == remat.LossStep {
		line.LeastLayer = len(c.Layers)
	}
	return line
}

func showExplanation(w io.Writer, c remat.Chain, e remat.Explanation) {
	extra := func(us float64) string {
		if us < 0 {
			return "-" + micros(-us)
		}
		return "+" + micros(us)
	}
	row(w, "", "LAYER", "KEEPS", "HELD", "AGAIN", "TIME", "EXTRA")
	for i, l := range e.Layers {
		row(w, i, l.Name, l.Keeps, formatBytes(l.Held), l.Recomputed, micros(l.Time), extra(l.Extra))
	}
	r := e.Report
	row(w, "", fmt.Sprint("all ", len(e.Layers)), "", formatBytes(r.Held), r.Recomputed, micros(r.Time),
		extra(r.Extra))
	fmt.Fprintf(w, "\npeak\t%s of %s, in %s: %s\n", formatBytes(e.Plan.Peak), formatBytes(e.Plan.Limit),
		opName(c, e.Plan.Ops[r.PeakOp]), partsOf(r.AtPeak))
	fmt.Fprintf(w, "time\t%s, %s on computing everything once\n", micros(r.Time), percent(r.Extra,
		r.Time-r.Extra))
	showLeast(w, c, e.Least)
	fmt.Fprintf(w, "greatest\t%s (%d bytes), above which nothing is computed again\n",
		formatBytes(e.Plain.Peak), e.Plain.Peak)
	for i, m := range e.More {
		if i > 0 && m.Time == e.More[i-1].Time {
			break // nothing more to be had
		}
		fmt.Fprintf(w, "%d MB\tmore would save %s (%.1f %%)\n", explainedBytes[i]/1e6, micros(m.Saved),
			part(m.Saved, r.Time))
	}
}

func showLeast(w io.Writer, c remat.Chain, least remat.LeastLimit) {
	fmt.Fprintf(w, "least\t%s (%d bytes), set by %s: %s\n", formatBytes(least.Bytes), least.Bytes,
		opName(c, least.Op), partsOf(least.Parts))
}

func newRematCompare() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "compare CHAIN [flags]",
		Short: "Compare usual strategies with the best plans at the same memory",
		Long: `Compare the usual strategies with the fastest plans at the same peak:

  none           nothing is computed again
  sequential     PyTorch's checkpoint_sequential: 2 to 2*sqrt(layers) segments
  revolve        Revolve, with 2 to 2*sqrt(layers) inputs kept at a time
  all            only the input is kept

What another of the same strategy beats in memory and time is left out. GAIN is how
many more steps the best plan does in the same time. For chains of more than 120
layers the best plans are those of one table for all, a few thousandths slower than
what penstock remat solve finds.`,
		Example: `  penstock remat compare chain.json
  penstock remat compare chain.json --format json`,
		Args: filesNamed("CHAIN"),
		RunE: interruptible("comparing", func(cmd *cobra.Command, args []string) error {
			c, err := readChain(cmd, args[0])
			if err != nil {
				return err
			}
			usual, err := remat.Baselines(c)
			if err != nil {
				return err
			}
			solve, err := bestPlans(cmd.Context(), c)
			if err != nil {
				return err
			}
			compared, err := remat.Compare(cmd.Context(), usual, solve)
			if err != nil {
				return err
			}
			lines := comparedLines(c, compared)
			return printResult(cmd, format, lines, func(w io.Writer) { showCompared(w, lines) })
		}),
	}
	formatFlag(cmd.Flags(), &format)
	return cmd
}

// longChain is the most layers for which a search for each limit takes less than a minute.
const longChain = 120

// bestPlans returns a function that finds plans under many limits: by one table if that is exact or the
// chain is long, and otherwise by a search for each limit.
func bestPlans(ctx context.Context, c remat.Chain) (func(context.Context, int64) (remat.Plan, error), error) {
	table, err := solver.NewTable(ctx, c, 0, solver.Options{})
	switch {
	case err != nil:
		return nil, err
	case !table.Exact() && len(c.Layers) <= longChain:
		return func(ctx context.Context, limit int64) (remat.Plan, error) {
			return solver.Solve(ctx, c, limit, solver.Options{Steps: -1}) // which the table has not sufficed for
		}, nil
	}
	return func(ctx context.Context, limit int64) (remat.Plan, error) { return table.Plan(limit), ctx.Err() },
		nil
}

// comparedLine is the JSON of a strategy. Its fields stay. Overheads are parts of the time of
// computing everything once.
type comparedLine struct {
	Strategy        string  `json:"strategy"`
	Segments        int     `json:"segments,omitempty"`
	Checkpoints     int     `json:"checkpoints,omitempty"`
	Peak            int64   `json:"peak_bytes"`
	Time            float64 `json:"time_us"`
	Overhead        float64 `json:"overhead"`
	OptimumPeak     int64   `json:"optimum_peak_bytes"`
	OptimumTime     float64 `json:"optimum_time_us"`
	OptimumOverhead float64 `json:"optimum_overhead"`
	Gain            float64 `json:"gain"`
}

func comparedLines(c remat.Chain, compared []remat.Compared) []comparedLine {
	once := c.Once()
	over := func(us float64) float64 { return part(us-once, once) / 100 }
	lines := []comparedLine{}
	for _, b := range compared {
		lines = append(lines, comparedLine{b.Strategy, b.Segments, b.Checkpoints, b.Peak, b.Time,
			over(b.Time),
			b.Optimum.Peak, b.Optimum.Time, over(b.Optimum.Time), b.Gain})
	}
	return lines
}

func showCompared(w io.Writer, lines []comparedLine) {
	var none int64 // its peak
	for _, l := range lines {
		if l.Strategy == "none" {
			none = l.Peak
		}
	}
	row(w, "STRATEGY", "PEAK", "OF NONE", "TIME", "OVERHEAD", "BEST PLAN", "OVERHEAD", "GAIN")
	for _, l := range lines {
		name := l.Strategy
		if n := l.Segments + l.Checkpoints; n > 0 {
			name = fmt.Sprintf("%s %d", name, n)
		}
		row(w, name, formatBytes(l.Peak), fmt.Sprintf("%.0f %%", part(float64(l.Peak), float64(none))),
			micros(l.Time),
			percent(l.Overhead, 1), micros(l.OptimumTime), percent(l.OptimumOverhead, 1), percent(l.Gain, 1))
	}
}

func newRematCurve() *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use:   "curve CHAIN --out FILE.svg",
		Short: "Draw the time of the best plans over memory",
		Long: `Draw how much longer a step takes the less memory it may use, from the least that has
a plan to where nothing is computed again, and beside it what the usual strategies
take (see penstock remat compare), up to 120 % longer. The picture is an SVG.`,
		Example: `  penstock remat curve chain.json --out curve.svg`,
		Args:    filesNamed("CHAIN"),
		RunE: interruptible("solving", func(cmd *cobra.Command, args []string) error {
			c, err := readChain(cmd, args[0], "out")
			if err != nil {
				return err
			}
			if filepath.Ext(out) != ".svg" {
				return badUsage("--out %q: want a name that ends in .svg", out)
			}
			if err := checkOut(cmd, out, args[0]); err != nil {
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
			title := counted(len(c.Layers), "layer")
			if name := chainTitle(c, args[0]); name != "" {
				title = name + ", " + title
			}
			svg, err := drawCurve(title, c, points, usual)
			if err != nil {
				return err
			}
			if err := writeOut(cmd, out, svg); err != nil {
				return err
			}
			least, greatest := points[0], points[len(points)-1]
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d plans from %s (%s) to %s, drawn in %s\n", len(points),
				formatBytes(least.Peak), percent(least.Time-c.Once(), c.Once()), formatBytes(greatest.Peak),
				out)
			return err
		}),
	}
	path(cmd.Flags(), &out, "out", "`FILE` to draw to, such as curve.svg")
	return cmd
}

// rematCurve returns the best plans, by ascending peak: at least one, of plain training.
func rematCurve(ctx context.Context, c remat.Chain) ([]solver.Point, error) {
	// The table grows with slots*layers^2 and the time by another factor of layers: more layers get
	// fewer slots.
	n := float64(min(len(c.Layers), 250)) // longer chains are joined
	slots := min(max(2e10/(n*n*n), 500), 4000)
	table, err := solver.NewTable(ctx, c, 0, solver.Options{Slots: int(slots)})
	if err != nil {
		return nil, err
	}
	return table.Curve(), nil
}

func newRematCheck() *cobra.Command {
	return &cobra.Command{
		Use:   "check CHAIN PLAN",
		Short: "Check that a plan does what it says",
		Long: `Carry out the operations of a plan on what the chain says that they cost, and check
that each is allowed, that the plan is complete, and that its peak and its time are
as it says and the peak within its limit. The exit code is 1 if anything does not
hold, and stderr says what and why.`,
		Example: `  penstock remat check chain.json plan.json
  penstock remat solve chain.json --limit 700MiB --format json | penstock remat check chain.json -`,
		Args: filesNamed("CHAIN", "PLAN"),
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
			text := fmt.Sprintf("the plan holds: %d operations, peak %s (%d bytes), time %s", len(p.Ops),
				formatBytes(p.Peak), p.Peak, micros(p.Time))
			if !p.Feasible {
				text = fmt.Sprintf("no plan: the limit is %d bytes, at least %d are needed", p.Limit, p.Peak)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), text)
			return err
		},
	}
}

// filesNamed refuses anything but one argument for each of these names.
func filesNamed(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > len(names) {
			return badUsage("unexpected argument %q for %q; see %[2]s --help", args[len(names)],
				cmd.CommandPath())
		}
		return atLeast(names...)(cmd, args)
	}
}

// atLeast refuses fewer arguments than these names.
func atLeast(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < len(names) {
			return badUsage("%s is missing for %q; see %[2]s --help", names[len(args)], cmd.CommandPath())
		}
		return nil
	}
}

// readChain reads a chain from a file, or standard input for "-", after a check of needed flags.
func readChain(cmd *cobra.Command, path string, needed ...string) (remat.Chain, error) {
	if err := need(cmd, needed...); err != nil {
		return remat.Chain{}, err
	}
	return readParsed(cmd, path, planfile.ParseChain)
}

// readParsed reads and parses a file. A mistake in it is a usage error.
func readParsed[T any](cmd *cobra.Command, path string, parse func([]byte) (T, error)) (value T, err error) {
	text, err := readInput(cmd, path)
	if err != nil {
		return value, err
	}
	if value, err = parse(text); err != nil {
		err = badUsage("%s: %s", inputName(path), message(err))
	}
	return value, err
}

// checkOut refuses an --out that cannot be written, or is one of the inputs, before anything is computed
// for it.
func checkOut(cmd *cobra.Command, out string, inputs ...string) error {
	if err := keepInputs(cmd.InOrStdin(), "out", out, inputs...); err != nil {
		return err
	}
	return probeOut(cmd, out)
}

// chainTitle is the model of a chain and its batch, or its file; "" if that is standard input.
func chainTitle(c remat.Chain, path string) string {
	switch {
	case c.Model != "" && c.Rows > 0:
		return fmt.Sprintf("%s, batch of %d", c.Model, c.Rows)
	case c.Model != "":
		return c.Model
	case isStdin(path):
		return ""
	}
	return filepath.Base(path)
}

// interruptible puts words to the error of a verb that a signal ended.
func interruptible(what string, run func(*cobra.Command, []string) error) func(*cobra.Command,
	[]string) error {
	return func(cmd *cobra.Command, args []string) error {
		err := run(cmd, args)
		if stop := cmd.Context().Err(); stop != nil && errors.Is(err, stop) {
			return fmt.Errorf("interrupted while %s; nothing is written", what)
		}
		return err
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
