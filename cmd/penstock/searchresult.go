package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"penstock.example/internal/report"
	"penstock.example/plan"
	"penstock.example/remat"
	"penstock.example/torch"
)

// searchLine is the JSON of a plan. penstock train --plan reads it.
type searchLine struct {
	Balance    []int    `json:"balance"` // layers of each stage
	Schedule   string   `json:"schedule"`
	Chunks     int      `json:"chunks"` // of each replica
	Step       float64  `json:"step_us"`
	LowerBound float64  `json:"lower_bound_us"` // no plan of those searched takes less
	Peak       []int64  `json:"peak_bytes"`     // by device
	Proved     bool     `json:"proved"`
	Virtual    int      `json:"virtual,omitempty"`   // stages of each device, if more than 1
	Replicas   int      `json:"replicas,omitempty"`  // if more than 1
	Threads    int      `json:"threads,omitempty"`   // of each device, if more than 1
	Devices    []string `json:"devices,omitempty"`   // of a machine, or named ones of this one
	Elsewhere  bool     `json:"elsewhere,omitempty"` // the devices are those of a machine's file
	// Of a model that was measured, for penstock train.
	Model     string         `json:"model,omitempty"`
	Settings  []string       `json:"set,omitempty"`
	Batch     int            `json:"batch,omitempty"`
	Rows      int            `json:"rows,omitempty"` // of a micro-batch
	Input     *dataLine      `json:"input,omitempty"`
	Limit     int64          `json:"memory_limit,omitempty"` // bytes of each device
	Bytes     []int64        `json:"bytes,omitempty"`        // of each device, without a limit: what GPUs had
	Optimizer string         `json:"optimizer,omitempty"`
	Momentum  *float64       `json:"momentum,omitempty"`   // of the optimizer, if not the usual one
	TrainOnly []string       `json:"train_only,omitempty"` // layers, if not all
	Autocast  torch.Autocast `json:"autocast,omitempty"`
	// Page is the plan itself, in a file, for penstock report.
	Page *report.Run `json:"page,omitempty"`
}

// line is the JSON of the plan.
func (p *foundPlan) line() searchLine {
	b := p.Best
	unlessOne := func(n int) int {
		if n == 1 {
			return 0
		}
		return n
	}
	line := searchLine{Balance: b.Balance, Schedule: b.Schedule, Chunks: b.MicroBatches, Step: us(b.Step),
		LowerBound: us(p.LowerBound), Peak: b.Peaks, Proved: p.Proved, Virtual: unlessOne(b.Virtual),
		Replicas: unlessOne(b.Replicas), Threads: unlessOne(b.Threads)}
	if b.Devices[0] != "device 0" {
		line.Devices, line.Elsewhere = b.Devices, p.flags.machine != ""
	}
	if p.model == nil {
		return line
	}
	f := p.flags
	line.Balance, line.Model, line.Settings = p.Layers(b.Balance), f.of.modelName, f.of.settings
	line.Optimizer, line.Autocast, line.TrainOnly = f.of.optimizer, f.of.autocast, f.trainOnly
	line.Batch, line.Rows, line.Limit = f.batch, b.Rows, f.limit
	line.Input = describeData(f.of.dataFlags, p.model.samples)
	if f.devices != nil && slices.ContainsFunc(b.Limits, func(n int64) bool { return n != f.limit }) {
		line.Bytes, line.Limit = b.Limits, 0
	}
	if f.update.Momentum != usualMomentum(f.of.optimizer) {
		line.Momentum = &f.update.Momentum
	}
	return line
}

// show prints the best plan and the others.
func (p *foundPlan) show(w io.Writer) {
	b, c := p.Best, p.Profile.Measured[0].Chain
	fmt.Fprintf(w, "step\t%s; %s\nplan\t%s\n", micros(us(b.Step)), p.bound(), p.line().inFlags())
	if b.Rows > 0 {
		fmt.Fprintf(w, "batch\t%s of %d rows, on %s\n", counted(b.MicroBatches, "micro-batch"), b.Rows,
			counted(b.Replicas, "pipeline"))
	}
	fmt.Fprintln(w)
	row(w, "STAGE", "DEVICE", "LAYERS", "RECOMPUTED", "BUSY", "PEAK", "LIMIT")
	at := 0
	for s, n := range b.Balance {
		on, layers, limit := b.Planned.Stages[s].Device, c.Layers[at].Name, "none"
		if n > 1 {
			layers += " to " + c.Layers[at+n-1].Name
		}
		if b.Limits[on] > 0 {
			limit = formatBytes(b.Limits[on])
		}
		row(w, s, b.Devices[on], fmt.Sprintf("%d: %s", n, layers), b.Planned.Stages[s].Recomputed(),
			fmt.Sprintf("%.1f %%", part(float64(b.Busy[on]), float64(b.Step))), formatBytes(b.Peaks[on]),
			limit)
		at += n
	}
	fmt.Fprintln(w)
	row(w, "SCHEDULE", "CHUNKS", "STEP", "NONE BELOW", "HIGHEST PEAK", "WHY NOT")
	for _, o := range p.others() {
		if o.Step == 0 {
			row(w, o.Schedule, "", "", "", "", o.Lost)
			continue
		}
		row(w, o.Schedule, o.MicroBatches, micros(1e6*o.Step), micros(1e6*o.Bound), formatBytes(o.Peak),
			cmp.Or(o.Lost, "the best"))
	}
}

// bound says how much faster another plan could be.
func (p *foundPlan) bound() string {
	switch {
	case p.Proved:
		return "no plan of those searched takes less"
	case p.LowerBound == 0:
		return "how much less another takes is not known"
	}
	return fmt.Sprintf("no plan of those searched takes less than %s (%s)", micros(us(p.LowerBound)),
		percent(float64(p.LowerBound-p.Best.Step), float64(p.Best.Step)))
}

// others are the schedules that were searched, and why each is not the best.
func (p *foundPlan) others() (list []report.Other) {
	for _, o := range p.Schedules {
		other := report.Other{Schedule: o.Schedule, Lost: o.Lost}
		if b := o.Plan; b != nil {
			switch {
			case b == p.Best || o.Lost != "":
			case b.Step == p.Best.Step:
				other.Lost = "the same time"
			default:
				other.Lost = fmt.Sprintf("time: %.1f %% more", 100*(float64(b.Step)/float64(p.Best.Step)-1))
			}
			other.MicroBatches, other.Step, other.Bound = b.MicroBatches, b.Step.Seconds(),
				o.LowerBound.Seconds()
			if len(b.Peaks) > 0 {
				other.Peak = slices.Max(b.Peaks)
			}
		}
		list = append(list, other)
	}
	return list
}

// page is what penstock report shows of the plan.
func (p *foundPlan) page() report.Run {
	b := p.Best
	out := report.Run{Title: p.title + ", planned", Plan: b.Planned, Planned: &b.Timeline, Limits: b.Limits,
		Others: p.others(), Facts: []report.Fact{
			{Name: "Step", Value: micros(us(b.Step)) + "; " + p.bound()},
			{Name: "Plan", Value: p.line().inFlags()},
			{Name: "Devices", Value: strings.Join(b.Devices, ", ")},
			{Name: "Versions", Value: fmt.Sprintf("penstock %s, libtorch %s", ownVersion(), torch.Version())},
			{Name: "Planned", Value: time.Now().Format("2 January 2006, 15:04 MST")},
		}}
	c := p.Profile.Measured[0].Chain
	for _, m := range p.Profile.Measured {
		if max(m.Threads, 1) == b.Threads && m.Rows == b.Rows {
			c = m.Chain
		}
	}
	for _, l := range c.Layers {
		out.Layers = append(out.Layers, report.Layer{Name: l.Name, Parameters: l.WeightGradient,
			Forward: l.Forward / 1e6, Backward: l.Backward / 1e6, Saved: l.Saved})
	}
	at := 0
	for s, n := range b.Balance {
		out.Chains = append(out.Chains, report.Chain{Stage: s,
			Chain: plan.ChainStage(c, at, at+n).Costs.Chain(remat.Adds)})
		at += n
	}
	return out
}

// planExplanation is the JSON of a plan that is explained.
type planExplanation struct {
	searchLine
	Explained *plan.Explanation `json:"explained"`
}

func (p *foundPlan) showExplanation(w io.Writer, e *plan.Explanation) {
	shares := func(list []plan.Share) string {
		var words []string
		for _, s := range list {
			words = append(words, fmt.Sprintf("%.0f %% %s", 100*s.Part, s.Name))
		}
		return strings.Join(words, ", ")
	}
	b, limit := p.Best, ""
	if n := b.Limits[e.Fullest]; n > 0 {
		limit = " of " + formatBytes(n)
	}
	fmt.Fprintf(w, "\ntime\t%s is busy for %.1f %% of the step; of that %s\n", b.Devices[e.Slowest],
		100*e.Busy, shares(e.Slow))
	fmt.Fprintf(w, "memory\t%s holds %s%s; of what its layers hold %s\n", b.Devices[e.Fullest],
		formatBytes(b.Peaks[e.Fullest]), limit, shares(e.Full))
	for _, g := range e.Gains {
		fmt.Fprintf(w, "%s\t%s, %s\n", g.What, micros(us(g.Step)),
			percent(float64(g.Step-p.Searched.Step), float64(p.Searched.Step)))
	}
}
