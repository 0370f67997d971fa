package main

import (
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/report"
)

// describeChains describes the units of a pipe's stages, if they were measured.
func describeChains(p *pipe.Pipe) (out []report.Chain) {
	for i, c := range p.Chains() {
		if len(c.Later.Layers) > 0 { // something is trained
			out = append(out, report.Chain{Stage: i, Chain: c.Later})
		}
	}
	return out
}

// describeLayers lists the layers of a model in a pipe, with measured costs: of each layer after a cut
// by time,
// of each unit after planning.
func describeLayers(model *nn.Sequential, on *pipe.Pipe) (out []report.Layer) {
	known := map[string]nn.LayerSummary{}
	for _, s := range nn.Summary(model) {
		known[s.Name] = s
	}
	for _, l := range on.Layers() {
		out = append(out, report.Layer{Name: l.Name, Type: known[l.Name].Type,
			Parameters: known[l.Name].Bytes})
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
