package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"penstock.example/internal/report"
	"penstock.example/pipe"
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
	Virtual    int      `json:"virtual"` // stages of each device
	Replicas   int      `json:"replicas"`
	Threads    int      `json:"threads"` // of each device
	Devices    []string `json:"devices"`
	// Train is the flags of penstock train for the plan of a model, by name. "" is a flag left out.
	Train map[string]string `json:"train,omitempty"`
	Bytes []int64           `json:"bytes,omitempty"` // of Devices, without a limit: what GPUs had
	// Explained is what penstock plan explain says of it.
	Explained *plan.Explanation `json:"explained,omitempty"`
	Page      *report.Run       `json:"page,omitempty"` // the plan itself, in a file, for penstock report
}

// line is the JSON of the plan.
func (p *foundPlan) line() searchLine {
	b, f := p.Best, p.flags
	line := searchLine{Balance: b.Balance, Schedule: b.Schedule, Chunks: b.MicroBatches, Step: us(b.Step),
		LowerBound: us(p.LowerBound), Peak: b.Peaks, Proved: p.Proved, Virtual: b.Virtual,
		Replicas: b.Replicas, Threads: b.Threads, Devices: b.Devices}
	if p.Units == nil { // a chain
		return line
	}
	line.Balance = p.Layers(b.Balance)
	line.Train = map[string]string{
		"model": f.of.modelName, "set": strings.Join(f.of.settings, ","), "batch": fmt.Sprint(f.batch),
		"optimizer": f.of.optimizer, "momentum": fmt.Sprint(f.update.Momentum),
		"train-only": strings.Join(f.trainOnly, ","), "autocast": f.of.autocast.String(),
		"balance": numbers(line.Balance), "stages": fmt.Sprint(len(b.Devices)), "schedule": b.Schedule,
		"virtual": fmt.Sprint(b.Virtual), "chunks": fmt.Sprint(b.MicroBatches),
		"threads": fmt.Sprint(b.Threads), "checkpoint": string(pipe.Optimal), "memory-limit": "",
	}
	if f.limit > 0 {
		line.Train["memory-limit"] = fmt.Sprint(f.limit)
	}
	if f.of.dataName != "" {
		line.Train["data"], line.Train["data-dir"] = f.of.dataName, f.of.dataDir
		line.Train["data-set"] = strings.Join(f.of.dataSettings, ",")
	}
	if slices.Contains(windowed, f.of.dataName) {
		line.Train["window"] = fmt.Sprint(f.of.window)
	}
	if f.devices != nil {
		line.Train["devices"] = strings.Join(b.Devices, ",")
		if slices.ContainsFunc(b.Limits, func(n int64) bool { return n != f.limit }) {
			line.Bytes, line.Train["memory-limit"] = b.Limits, ""
		}
	}
	return line
}

// show prints the best plan and the others, and what explains it unless e is nil.
func (p *foundPlan) show(w io.Writer, e *plan.Explanation) {
	b, c := p.Best, p.Profile.Measured[0].Chain
	fmt.Fprintf(w, "step\t%s; %s\nplan\t%s\n", micros(us(b.Step)), p.bound(), p.line().inFlags())
	if b.Rows > 0 {
		fmt.Fprintf(w, "batch\t%s of %d rows, on %s\n", counted(b.MicroBatches, "micro-batch"), b.Rows,
			counted(b.Replicas, "pipeline"))
	}
	limit := func(device int, none string) string {
		if b.Limits[device] == 0 {
			return none
		}
		return formatBytes(b.Limits[device])
	}
	fmt.Fprintln(w)
	row(w, "STAGE", "DEVICE", "LAYERS", "RECOMPUTED", "BUSY", "PEAK", "LIMIT")
	at := 0
	for s, n := range b.Balance {
		on, layers := b.Planned.Stages[s].Device, c.Layers[at].Name
		if n > 1 {
			layers += " to " + c.Layers[at+n-1].Name
		}
		row(w, s, b.Devices[on], fmt.Sprintf("%d: %s", n, layers), b.Planned.Stages[s].Recomputed(),
			fmt.Sprintf("%.1f %%", part(float64(b.Busy[on]), float64(b.Step))), formatBytes(b.Peaks[on]),
			limit(on, "none"))
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
	if e == nil {
		return
	}
	shares := func(list []plan.Share) string {
		var words []string
		for _, s := range list {
			words = append(words, fmt.Sprintf("%.0f %% %s", 100*s.Part, s.Name))
		}
		return strings.Join(words, ", ")
	}
	fmt.Fprintf(w, "\ntime\t%s is busy for %.1f %% of the step; of that %s\n", b.Devices[e.Slowest],
		100*e.Busy, shares(e.Slow))
	fmt.Fprintf(w, "memory\t%s holds %s of %s; of what its layers hold %s\n", b.Devices[e.Fullest],
		formatBytes(b.Peaks[e.Fullest]), limit(e.Fullest, "any number"), shares(e.Full))
	for _, g := range e.Gains {
		fmt.Fprintf(w, "%s\t%s, %s\n", g.What, micros(us(g.Step)),
			percent(float64(g.Step-p.Searched.Step), float64(p.Searched.Step)))
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
			if b != p.Best && o.Lost == "" {
				other.Lost = fmt.Sprintf("time: %.1f %% more", 100*(float64(b.Step)/float64(p.Best.Step)-1))
			}
			other.MicroBatches, other.Step, other.Bound = b.MicroBatches, b.Step.Seconds(),
				o.LowerBound.Seconds()
			other.Peak = slices.Max(append(b.Peaks, 0))
		}
		list = append(list, other)
	}
	return list
}

// page is what penstock report shows of the plan.
func (p *foundPlan) page() *report.Run {
	b, c := p.Best, p.Profile.Measured[0].Chain
	out := &report.Run{Title: p.title + ", planned", Plan: b.Planned, Planned: &b.Timeline, Limits: b.Limits,
		Others: p.others(), Facts: []report.Fact{
			{Name: "Step", Value: micros(us(b.Step)) + "; " + p.bound()},
			{Name: "Plan", Value: p.line().inFlags()},
			{Name: "Devices", Value: strings.Join(b.Devices, ", ")},
			{Name: "Versions", Value: fmt.Sprintf("penstock %s, libtorch %s", ownVersion(), torch.Version())},
			{Name: "Planned", Value: time.Now().Format("2 January 2006, 15:04 MST")},
		}}
	for _, m := range p.Profile.Measured {
		if m.Threads == b.Threads && m.Rows == b.Rows {
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
