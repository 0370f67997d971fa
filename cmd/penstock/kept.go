package main

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"penstock.example/metrics"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/report"
	"penstock.example/torch"
	"penstock.example/train"
)

// keepRun is a hook that keeps what the page of the run shows, when a step has been recorded.
func (j *job) keepRun(s train.StepInfo) error {
	if s.Timeline == nil || s.Step != j.trace.step || j.member.Rank > 0 {
		return nil
	}
	r := j.describeRun()
	r.Step, r.Ran, r.Plan = s.Step, s.Timeline, j.pipe.Plan()
	planned, predicted, err := r.Plan.Timeline()
	if err != nil {
		return err
	}
	if predicted {
		r.Planned = &planned
	}
	j.kept = &r
	return j.keepForPage(r)
}

// keepForPage shows a run on the dashboard and keeps it for its page.
func (j *job) keepForPage(r report.Run) error {
	if j.dashboard.live != nil {
		if err := j.dashboard.live.SetRun(r); err != nil {
			return err
		}
	}
	if j.out == "" {
		return nil
	}
	return unwritable("out", j.out, r.WriteFile(filepath.Join(j.out, report.FileName)))
}

// keepEnd keeps how the run ended, and tells pages. What an earlier part of the run has kept stays
// where this one has recorded no step. That it cannot be kept is no error beside that of the run.
func (j *job) keepEnd(end error) error {
	if j.member.Rank > 0 || j.out == "" && j.dashboard.live == nil {
		return nil
	}
	ended := &report.Ended{How: "finished", Time: metrics.Seconds(time.Now())}
	var stopped *interruptedError
	if end != nil {
		ended.How, ended.Why = "failed", message(end)
	}
	if errors.As(end, &stopped) {
		ended.How = "interrupted"
	}
	if j.kept == nil {
		r, err := report.ReadFile(filepath.Join(j.out, report.FileName))
		if r.Last = j.last; j.from == nil || err != nil {
			r = j.describeRun()
		}
		j.kept = &r
	}
	j.kept.Ended = ended
	err := j.keepForPage(*j.kept)
	if j.dashboard.live != nil {
		j.dashboard.live.End(ended.How)
	}
	if end != nil {
		return nil
	}
	return err
}

// describeRun is what is known of the run before its first step.
func (j *job) describeRun() report.Run {
	r := report.Run{Title: j.modelName + " on " + j.dataName, Last: j.last, Layers: describeLayers(j.model, j.pipe), Facts: j.runFacts()}
	for _, d := range j.pipe.Devices() {
		r.Limits = append(r.Limits, d.Memory().Limit)
	}
	r.Chains = describeChains(j.pipe)
	return r
}

// describeChains is what the units of a pipe's stages cost, where they were measured.
func describeChains(p *pipe.Pipe) (out []report.Chain) {
	for i, c := range p.Chains() {
		if len(c.Later.Layers) > 0 { // something is trained
			out = append(out, report.Chain{Stage: i, Chain: c.Later})
		}
	}
	return out
}

// runFacts is the run in words.
func (j *job) runFacts() []report.Fact {
	config := j.pipe.Config()
	optimizer := fmt.Sprintf("%s, learning rate %g, %s", j.optimizerName, j.update.LR, j.lrSchedule)
	batch := fmt.Sprintf("%d samples in %s", j.batch, counted(config.Chunks, "micro-batch"))
	if j.accumulate > 1 {
		batch += fmt.Sprintf(", %d batches in a step", j.accumulate)
	}
	facts := []report.Fact{
		{Name: "Command", Value: j.commandLine()},
		{Name: "Batch", Value: batch},
		{Name: "Cut", Value: fmt.Sprintf("%s layers", strings.ReplaceAll(numbers(config.Balance), ",", " + "))},
		{Name: "Schedule", Value: cmp.Or(j.plan.schedule, "gpipe")},
		{Name: "Recomputation", Value: config.Checkpoint.String()},
		{Name: "Optimizer", Value: optimizer},
		{Name: "Threads", Value: fmt.Sprintf("%d within an operator", max(config.Threads, 1))},
	}
	if j.group != nil {
		facts = append(facts, report.Fact{Name: "Processes", Value: fmt.Sprint(j.group.Size())})
	}
	return append(facts, report.Fact{Name: "Versions", Value: fmt.Sprintf("penstock %s, libtorch %s", ownVersion(), torch.Version())},
		report.Fact{Name: "Recorded", Value: time.Now().Format("2 January 2006, 15:04 MST")})
}

// commandLine is what the run was started with.
func (p *plan) commandLine() string {
	if command := p.getenv(launchedBy); command != "" {
		return command
	}
	return shellQuoted(append([]string{"penstock"}, p.args...))
}

// describeLayers lists the layers of a model in a pipe, with what they cost where something has measured it: of each
// layer for a cut by time, of each unit for a plan.
func describeLayers(model *nn.Sequential, on *pipe.Pipe) (out []report.Layer) {
	known := map[string]nn.LayerSummary{}
	for _, s := range nn.Summary(model) {
		known[s.Name] = s
	}
	for _, l := range on.Layers() {
		out = append(out, report.Layer{Name: l.Name, Type: known[l.Name].Type, Parameters: known[l.Name].Bytes})
	}
	if p := on.Config().Profile; p != nil && len(p.Layers) == len(out) {
		for i, l := range p.Layers {
			out[i].Forward, out[i].Backward, out[i].Saved = l.Forward, l.Backward, l.Saved
		}
		return out
	}
	first := 0
	stages := on.Stages()
	for i, c := range on.Chains() {
		at, end := first, first+len(stages[i].Layers)
		for unit, n := range c.Units {
			if at >= end {
				break
			}
			out[at].Of = min(n, end-at) // a loss that ends a unit is no layer of the model
			if k := unit - c.Prologue; k < 0 {
				out[at].Forward = c.UnitTimes[unit].ForwardNoGrad / 1e6
			} else if k < len(c.Later.Layers) {
				l := c.Later.Layers[k]
				out[at].Forward, out[at].Backward, out[at].Saved = l.Forward/1e6, l.Backward/1e6, l.Saved
			}
			at += n
		}
		first = end
	}
	return out
}
