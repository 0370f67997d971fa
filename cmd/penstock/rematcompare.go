package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"penstock.example/remat"
)

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
what penstock remat solve finds.

CHAIN is a file, or - for standard input.`,
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
			if format == "json" {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(comparedLines(c, compared))
			}
			return showCompared(cmd.OutOrStdout(), c, compared)
		}),
	}
	tableOrJSON(cmd.Flags(), &format, "table or json")
	return cmd
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
	over := func(us float64) float64 {
		if once == 0 {
			return 0
		}
		return us/once - 1
	}
	lines := []comparedLine{}
	for _, b := range compared {
		lines = append(lines, comparedLine{b.Strategy, b.Segments, b.Checkpoints, b.Peak, b.Time, over(b.Time), b.Optimum.Peak, b.Optimum.Time, over(b.Optimum.Time), b.Gain})
	}
	return lines
}

func showCompared(w io.Writer, c remat.Chain, compared []remat.Compared) error {
	var full int64 // peak of none
	for _, b := range compared {
		if b.Strategy == "none" {
			full = b.Peak
		}
	}
	t := newTable(w)
	fmt.Fprintln(t, "STRATEGY\tPEAK\tOF NONE\tTIME\tOVERHEAD\tBEST PLAN\tOVERHEAD\tGAIN")
	for _, line := range comparedLines(c, compared) {
		name := line.Strategy
		if n := line.Segments + line.Checkpoints; n > 0 {
			name = fmt.Sprintf("%s %d", name, n)
		}
		fmt.Fprintf(t, "%s\t%s\t%.0f %%\t%s\t%s\t%s\t%s\t%s\n", name, formatBytes(line.Peak),
			part(float64(line.Peak), float64(full)), micros(line.Time), signedPercent(100*line.Overhead),
			micros(line.OptimumTime), signedPercent(100*line.OptimumOverhead), signedPercent(100*line.Gain))
	}
	return t.Flush()
}
