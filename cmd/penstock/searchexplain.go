package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"penstock.example/planner/search"
)

func newPlanExplain() *cobra.Command {
	var f searchFlags
	var format string
	cmd := &cobra.Command{
		Use:   "explain CHAIN|--model NAME [flags]",
		Short: "Say what sets the time and memory of the fastest plan",
		Long: `Find the plan that penstock plan finds, and say which device and which layers set its
time and its memory, and what a step would take with one more device, with 10 %
more bytes, and with links of twice the bandwidth.`,
		Example: `  penstock plan explain chain.json --stages 4 --chunks 8 --memory-limit 2GiB
  penstock plan explain --model resnet20 --batch 64 --devices 2 --format json`,
		Args: chainOrModel(&f),
		RunE: interruptible("planning", func(cmd *cobra.Command, args []string) error {
			if err := checkOutput(cmd.OutOrStdout()); err != nil {
				return err
			}
			job, err := f.read(cmd, args)
			if err != nil {
				return err
			}
			show := newPlanProgress(cmd.ErrOrStderr(), "planning")
			defer show.end()
			found, plan, e, err := job.explain(cmd.Context(), show)
			if err != nil {
				return err
			}
			show.end()
			w, p := cmd.OutOrStdout(), found.Best
			if format == "json" {
				return json.NewEncoder(w).Encode(newPlanExplanation(job.line(found), p, plan.Step, e))
			}
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
				if g.Step == plan.Step {
					fmt.Fprintf(t, "%s\tgains nothing\n", g.What)
					continue
				}
				fmt.Fprintf(t, "%s\t%s, %s\n", g.What, micros(us(g.Step)), percent(float64(g.Step-plan.Step), float64(plan.Step)))
			}
			return t.Flush()
		}),
	}
	f.register(cmd)
	formatFlag(cmd.Flags(), &format)
	return cmd
}

// explain finds the best plan, and explains it as it was found.
func (j *searchJob) explain(ctx context.Context, show *progress) (found *search.Result, plan *search.Plan, e *search.Explanation, err error) {
	if found, err = j.searchTold(ctx, show); err != nil {
		return nil, nil, nil, err
	}
	plan = found.Best
	if m := j.model; m != nil && m.searched != nil {
		plan = m.searched
	}
	e, err = search.Explain(ctx, j.profile, j.machine, j.wishes, plan)
	return found, plan, e, err
}

// planExplanation is the JSON of a plan that is explained. Its fields stay.
type planExplanation struct {
	searchLine
	Time   deviceTime   `json:"time"`
	Memory deviceMemory `json:"memory"`
	Gains  []gainLine   `json:"gains"`
}

// deviceTime is the device that is busy longest.
type deviceTime struct {
	Device int         `json:"device"` // counted from 0, as for the plan's bytes
	Name   string      `json:"name"`
	Busy   float64     `json:"busy"` // share of the step
	Layers []shareLine `json:"layers"`
}

// deviceMemory is the device whose peak is the greatest part of its limit, or the greatest.
type deviceMemory struct {
	Device int         `json:"device"`
	Name   string      `json:"name"`
	Peak   int64       `json:"peak_bytes"`
	Limit  int64       `json:"limit_bytes,omitempty"` // left out if there is none
	Layers []shareLine `json:"layers"`
}

// shareLine is one of the units that take most of a device.
type shareLine struct {
	Unit int     `json:"unit"` // of the chain, or of the model as it was measured, counted from 0
	Name string  `json:"name"`
	Part float64 `json:"part"` // of what all units of the device take
}

// gainLine is what the step would take with more of something. What cannot be had more of, as of
// bytes without a limit, has none.
type gainLine struct {
	What string  `json:"what"` // "one more device", "10 % more bytes", "twice the bandwidth"
	Step float64 `json:"step_us"`
	Part float64 `json:"part"` // of the plan's step that is gained
}

// newPlanExplanation explains a plan, for which the search counts so long a step.
func newPlanExplanation(line searchLine, p *search.Plan, step time.Duration, e *search.Explanation) planExplanation {
	out := planExplanation{
		searchLine: line,
		Time:       deviceTime{e.Slowest, p.Devices[e.Slowest], e.Busy, shareLines(e.Slow)},
		Memory:     deviceMemory{e.Fullest, p.Devices[e.Fullest], p.Peaks[e.Fullest], p.Limits[e.Fullest], shareLines(e.Full)},
		Gains:      []gainLine{},
	}
	for _, g := range e.Gains {
		out.Gains = append(out.Gains, gainLine{g.What, us(g.Step), float64(step-g.Step) / float64(max(step, 1))})
	}
	return out
}

func shareLines(list []search.Share) (out []shareLine) {
	for _, s := range list {
		out = append(out, shareLine(s))
	}
	return out
}

// shares lists units with their parts.
func shares(list []search.Share) string {
	var words []string
	for _, s := range list {
		words = append(words, fmt.Sprintf("%.0f %% %s", 100*s.Part, s.Name))
	}
	return strings.Join(words, ", ")
}
