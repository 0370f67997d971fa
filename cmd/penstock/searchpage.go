package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"penstock.example/planner"
	"penstock.example/planner/search"
	"penstock.example/remat"
	"penstock.example/report"
	"penstock.example/torch"
)

// page is what penstock report shows of the best plan.
func (j *searchJob) page(r *search.Result) report.Run {
	p := r.Best
	out := report.Run{Title: j.title + ", planned", Facts: j.facts(r), Plan: p.Planned, Planned: &p.Timeline, Limits: p.Limits}
	for _, o := range r.Schedules {
		other := report.Other{Schedule: o.Schedule, Lost: o.Lost}
		if o.Plan != nil {
			if o.Plan != p {
				other.Lost = cmp.Or(o.Lost, whyNot(o.Plan, p))
			}
			other.MicroBatches, other.Step, other.Bound = o.Plan.MicroBatches, o.Plan.Step.Seconds(), o.LowerBound.Seconds()
			if len(o.Plan.Peaks) > 0 {
				other.Peak = slices.Max(o.Plan.Peaks)
			}
		}
		out.Others = append(out.Others, other)
	}
	if m := j.model; m != nil && !j.elsewhere {
		out.Layers, out.Chains = m.known, m.chains
		return out
	}
	c := j.chainOf(p)
	for _, l := range c.Layers {
		out.Layers = append(out.Layers, report.Layer{Name: l.Name, Parameters: l.WeightGradient, Forward: l.Forward / 1e6, Backward: l.Backward / 1e6, Saved: l.Saved})
	}
	at := 0
	for s, n := range p.Balance {
		out.Chains = append(out.Chains, report.Chain{Stage: s, Chain: planner.ChainStage(c, at, at+n).Costs.Chain(remat.Adds)})
		at += n
	}
	return out
}

// chainOf is the chain that a plan was made from.
func (j *searchJob) chainOf(p *search.Plan) remat.Chain {
	for _, m := range j.profile.Measured {
		if max(m.Threads, 1) == p.Threads && (p.Rows == 0 || m.Rows == p.Rows) {
			return m.Chain
		}
	}
	return j.profile.Measured[0].Chain
}

// facts is the plan in words.
func (j *searchJob) facts(r *search.Result) []report.Fact {
	p := r.Best
	bound := "no plan of those searched takes less"
	if !r.Proved {
		bound = fmt.Sprintf("no plan of those searched takes less than %s", micros(us(r.LowerBound)))
	}
	parts := counted(p.MicroBatches, "micro-batch")
	if p.Rows > 0 {
		parts += " of " + counted(p.Rows, "row")
	}
	balance, unit := p.Balance, "units"
	if j.model != nil {
		balance, unit = j.model.layers(p.Balance), "layers"
	}
	facts := []report.Fact{
		{Name: "Step", Value: micros(us(p.Step)) + "; " + bound},
		{Name: "Schedule", Value: p.Schedule},
		{Name: "Batch", Value: parts},
		{Name: "Cut", Value: fmt.Sprintf("%s %s", strings.ReplaceAll(numbers(balance), ",", " + "), unit)},
		{Name: "Devices", Value: strings.Join(p.Devices, ", ")},
		{Name: "Threads", Value: fmt.Sprintf("%d within an operator", p.Threads)},
	}
	if p.Replicas > 1 {
		facts = append(facts, report.Fact{Name: "Replicas", Value: fmt.Sprint(p.Replicas)})
	}
	if j.model != nil {
		facts = append(facts, report.Fact{Name: "Optimizer", Value: j.model.optimizer})
	}
	if j.model != nil && j.model.trainOnly != nil {
		facts = append(facts, report.Fact{Name: "Trained", Value: strings.Join(j.model.trainOnly, ", ")})
	}
	return append(facts, report.Fact{Name: "Versions", Value: fmt.Sprintf("penstock %s, libtorch %s", ownVersion(), torch.Version())},
		report.Fact{Name: "Planned", Value: time.Now().Format("2 January 2006, 15:04 MST")})
}
