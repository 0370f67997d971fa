package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"penstock.example/remat"
	"penstock.example/remat/solver"
)

// explainedBytes are how much more memory explain looks at.
var explainedBytes = []int64{10e6, 100e6, 1000e6}

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
what 10 MB, 100 MB and 1 GB more would save.

CHAIN is a file, or - for standard input.`,
		Example: `  penstock remat explain chain.json --limit 700MiB
  penstock remat explain chain.json --limit 700MiB --format json`,
		Args: filesNamed("CHAIN"),
		RunE: interruptible("solving", func(cmd *cobra.Command, args []string) error {
			c, err := readChain(cmd, args[0])
			if err != nil {
				return err
			}
			p, err := solveUnder(cmd.Context(), c, limit, solver.Options{})
			if err != nil {
				return err
			}
			e, err := remat.Explain(cmd.Context(), c, p, explainedBytes, solveEach(c, solver.Options{}))
			if err != nil {
				return err
			}
			least, err := solver.ExplainLeast(c)
			if err != nil {
				return err
			}
			if format == "json" {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(explainLine(c, e, least))
			}
			return showExplanation(cmd.OutOrStdout(), c, e, least)
		}),
	}
	cmd.Flags().SortFlags = false
	limitFlag(cmd, &limit)
	tableOrJSON(cmd.Flags(), &format, "table or json")
	return cmd
}

// explanationLine is the JSON of an explanation. Its fields stay.
type explanationLine struct {
	Limit      int64                `json:"limit_bytes"`
	Peak       int64                `json:"peak_bytes"`
	Time       float64              `json:"time_us"`
	Once       float64              `json:"once_us"` // computing everything once
	Recomputed int                  `json:"recomputed"`
	Least      int64                `json:"least_limit_bytes"`
	LeastLayer int                  `json:"least_limit_layer"` // the number of layers: the loss
	LeastOp    string               `json:"least_limit_op"`
	Greatest   int64                `json:"greatest_limit_bytes"`
	Layers     []explainedLayerLine `json:"layers"`
	More       []moreLine           `json:"more"`
}

type explainedLayerLine struct {
	Name       string  `json:"name"`
	Keeps      string  `json:"keeps"` // "nothing", "input" or "everything"
	Recomputed int     `json:"recomputed"`
	Held       int64   `json:"held_bytes"`
	Time       float64 `json:"time_us"`
	Extra      float64 `json:"extra_us"`
}

type moreLine struct {
	Limit int64   `json:"limit_bytes"`
	Time  float64 `json:"time_us"`
	Saved float64 `json:"saved_us"`
}

func explainLine(c remat.Chain, e remat.Explanation, least remat.LeastLimit) explanationLine {
	line := explanationLine{
		Limit: e.Plan.Limit, Peak: e.Plan.Peak, Time: e.Plan.Time, Once: e.Report.Time - e.Report.Extra,
		Recomputed: e.Report.Recomputed,
		Least:      least.Bytes, LeastLayer: least.Op.Layer, LeastOp: least.Op.Kind.String(),
		Greatest: e.Plain.Peak, Layers: []explainedLayerLine{}, More: []moreLine{},
	}
	if least.Op.Kind == remat.LossStep {
		line.LeastLayer = len(c.Layers)
	}
	for _, l := range e.Layers {
		line.Layers = append(line.Layers, explainedLayerLine{l.Name, l.Keeps.String(), l.Recomputed, l.Held, l.Time, l.Extra})
	}
	for _, m := range e.More {
		line.More = append(line.More, moreLine(m))
	}
	return line
}

func showExplanation(w io.Writer, c remat.Chain, e remat.Explanation, least remat.LeastLimit) error {
	t := newTable(w)
	fmt.Fprintln(t, "\tLAYER\tKEEPS\tHELD\tAGAIN\tTIME\tEXTRA")
	for i, l := range e.Layers {
		fmt.Fprintf(t, "%d\t%s\t%v\t%s\t%d\t%s\t%s\n", i, l.Name, l.Keeps, formatBytes(l.Held), l.Recomputed,
			micros(l.Time), signed(l.Extra))
	}
	fmt.Fprintf(t, "\tall %d\t\t%s\t%d\t%s\t%s\n", len(e.Layers), formatBytes(e.Report.Held),
		e.Report.Recomputed, micros(e.Report.Time), signed(e.Report.Extra))
	once := e.Report.Time - e.Report.Extra
	fmt.Fprintf(t, "\npeak\t%s of %s, in %s: %s\n", formatBytes(e.Plan.Peak), formatBytes(e.Plan.Limit),
		opName(c, e.Plan.Ops[e.Report.PeakOp]), partsOf(e.Report.AtPeak))
	fmt.Fprintf(t, "time\t%s, %s on computing everything once\n", micros(e.Report.Time), percent(e.Report.Extra, once))
	fmt.Fprintf(t, "least\t%s (%d bytes), set by %s: %s\n", formatBytes(least.Bytes), least.Bytes,
		opName(c, least.Op), partsOf(least.Parts))
	fmt.Fprintf(t, "greatest\t%s (%d bytes), above which nothing is computed again\n", formatBytes(e.Plain.Peak), e.Plain.Peak)
	for i, m := range e.More {
		if i > 0 && m.Time == e.More[i-1].Time {
			break // nothing more to be had
		}
		fmt.Fprintf(t, "%d MB\tmore would save %s (%.1f %%)\n", explainedBytes[i]/1e6, micros(m.Saved), part(m.Saved, e.Report.Time))
	}
	return t.Flush()
}

// signed is microseconds on top of others.
func signed(us float64) string {
	switch {
	case us > 0:
		return "+" + micros(us)
	case us < 0:
		return "-" + micros(-us)
	}
	return "0"
}
