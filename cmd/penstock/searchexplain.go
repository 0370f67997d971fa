package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"penstock.example/plan"
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
			show := newPlanProgress(cmd.ErrOrStderr(), "planning")
			defer show.end()
			p, err := f.plan(cmd, args, show)
			if err != nil {
				return err
			}
			e, err := plan.Explain(cmd.Context(), p.Profile, p.Machine, p.Wishes, p.Searched)
			if err != nil {
				return err
			}
			show.end()
			line := explainedPlan(p, e)
			return printResult(cmd, format, line, func(w io.Writer) {
				p.show(w)
				line.show(w)
			})
		}),
	}
	f.register(cmd)
	formatFlag(cmd.Flags(), &format)
	return cmd
}

// planExplanation is the JSON of a plan that is explained. Its fields stay.
type planExplanation struct {
	searchLine
	Time   deviceTime   `json:"time"`   // of the device that is busy longest
	Memory deviceMemory `json:"memory"` // of the device whose peak is the greatest part of its limit, or the greatest
	Gains  []gainLine   `json:"gains"`
}

type deviceTime struct {
	Device int         `json:"device"` // counted from 0, as for the plan's bytes
	Name   string      `json:"name"`
	Busy   float64     `json:"busy"` // share of the step
	Layers []shareLine `json:"layers"`
}

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

// gainLine is the step with more of something. Bytes have none without a limit.
type gainLine struct {
	What string  `json:"what"` // "one more device", "10 % more bytes", "twice the bandwidth"
	Step float64 `json:"step_us"`
	Part float64 `json:"part"` // of the plan's step that is gained
}

func explainedPlan(p *foundPlan, e *plan.Explanation) planExplanation {
	shares := func(list []plan.Share) (out []shareLine) {
		for _, s := range list {
			out = append(out, shareLine(s))
		}
		return out
	}
	b := p.Best
	out := planExplanation{
		searchLine: p.line(),
		Time:       deviceTime{e.Slowest, b.Devices[e.Slowest], e.Busy, shares(e.Slow)},
		Memory: deviceMemory{e.Fullest, b.Devices[e.Fullest], b.Peaks[e.Fullest], b.Limits[e.Fullest],
			shares(e.Full)},
		Gains: []gainLine{},
	}
	for _, g := range e.Gains {
		out.Gains = append(out.Gains, gainLine{g.What, us(g.Step),
			1 - float64(g.Step)/float64(max(p.Searched.Step, 1))})
	}
	return out
}

func (e planExplanation) show(w io.Writer) {
	shares := func(list []shareLine) string {
		var words []string
		for _, s := range list {
			words = append(words, fmt.Sprintf("%.0f %% %s", 100*s.Part, s.Name))
		}
		return strings.Join(words, ", ")
	}
	limit := ""
	if e.Memory.Limit > 0 {
		limit = " of " + formatBytes(e.Memory.Limit)
	}
	fmt.Fprintf(w, "\ntime\t%s is busy for %.1f %% of the step; of that %s\n", e.Time.Name, 100*e.Time.Busy,
		shares(e.Time.Layers))
	fmt.Fprintf(w, "memory\t%s holds %s%s; of what its layers hold %s\n", e.Memory.Name,
		formatBytes(e.Memory.Peak), limit,
		shares(e.Memory.Layers))
	for _, g := range e.Gains {
		fmt.Fprintf(w, "%s\t%s, %s\n", g.What, micros(g.Step), percent(-g.Part, 1))
	}
}
