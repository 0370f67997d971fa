package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"penstock.example/planner/search"
)

func newPlanExplain() *cobra.Command {
	var f searchFlags
	cmd := &cobra.Command{
		Use:   "explain CHAIN|--model NAME [flags]",
		Short: "Say what sets the time and memory of the fastest plan",
		Long: `Find the plan that penstock plan finds, and say which device and which layers set its
time and its memory, and what a step would take with one more device, with 10 %
more bytes, and with links of twice the bandwidth.`,
		Example: `  penstock plan explain chain.json --stages 4 --chunks 8 --memory-limit 2GiB`,
		Args:    chainOrModel(&f),
		RunE: interruptible("planning", func(cmd *cobra.Command, args []string) error {
			job, err := f.read(cmd, args)
			if err != nil {
				return err
			}
			found, err := job.search(cmd.Context(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			plan := found.Best
			if m := job.model; m != nil && m.searched != nil {
				plan = m.searched
			}
			show := newPlanProgress(cmd.ErrOrStderr(), "planning")
			job.wishes.Progress = show.at
			e, err := search.Explain(cmd.Context(), job.profile, job.machine, job.wishes, plan)
			show.end()
			if err != nil {
				return err
			}
			w, p := cmd.OutOrStdout(), found.Best
			if err := showSearch(w, job.profile.Measured[0].Chain, found); err != nil {
				return err
			}
			t := newTable(w)
			fmt.Fprintf(t, "\ntime\t%s is busy for %.1f %% of the step; of that %s\n", p.Devices[e.Slowest], 100*e.Busy, shares(e.Slow))
			limit := ""
			if of := p.Limits[e.Fullest]; of > 0 {
				limit = " of " + formatBytes(of)
			}
			fmt.Fprintf(t, "memory\t%s holds %s%s; of what its layers hold %s\n", p.Devices[e.Fullest], formatBytes(p.Peaks[e.Fullest]), limit, shares(e.Full))
			for _, g := range e.Gains {
				if g.Step == p.Step {
					fmt.Fprintf(t, "%s\tgains nothing\n", g.What)
					continue
				}
				fmt.Fprintf(t, "%s\t%s, %s\n", g.What, micros(us(g.Step)), percent(float64(g.Step-p.Step), float64(p.Step)))
			}
			return t.Flush()
		}),
	}
	f.register(cmd)
	return cmd
}

// shares lists units with their parts.
func shares(list []search.Share) string {
	var words []string
	for _, s := range list {
		words = append(words, fmt.Sprintf("%.0f %% %s", 100*s.Part, s.Name))
	}
	return strings.Join(words, ", ")
}
