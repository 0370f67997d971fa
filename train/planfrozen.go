package train

import (
	"slices"

	"penstock.example/nn"
	"penstock.example/plan"
	"penstock.example/profile"
	"penstock.example/remat"
)

// Frozen layers in front of the first trained one run once and hold nothing for a backward. A chain begins
// after them, or has them in one unit with the next layers. As a plan may cut between them, the search has a
// unit for each.

// withFrozen is the model as it was measured, with the layers of each unit.
func (p *planning) withFrozen(found profile.Profile) (out plan.Costs, units []int) {
	c := found.Chains[0]
	passed := 0 // layers before the chain
	for _, n := range c.Units[:c.Prologue] {
		passed += n
	}
	rest, front := slices.Clone(c.Units[c.Prologue:]), frozenInFront(p.model)
	if len(rest) > 0 {
		rest[0] -= front - passed
	}
	units = append(slices.Repeat([]int{1}, front), rest...)
	out.Chain, out.Held = c.Chain, untrained(p.model, units)
	if front == 0 || len(c.Layers) == 0 {
		return out, units
	}
	own := slices.Clone(c.Layers)
	first := &own[0]
	out.Chain.Layers, out.Sent = nil, []int64{c.Given}
	for i, l := range found.Layers[:front] {
		micros := 1e6 * l.Forward
		unit := remat.Layer{Name: l.Name, Forward: micros, ForwardNoGrad: micros, ForwardTmp: c.ProloguePeak}
		switch {
		case i >= passed: // in one unit with what follows
			unit.ForwardTmp = c.Layers[0].Saved + c.Layers[0].ForwardTmp
			first.Forward, first.ForwardNoGrad = max(first.Forward-micros, 0), max(first.ForwardNoGrad-micros,
				0)
		case i == passed-1: // its output is the chain's input
			unit.Output, unit.Saved, unit.ForwardTmp = c.Input, c.Input, max(c.ProloguePeak-c.Input, 0)
		}
		unit.ForwardNoGradTmp = unit.ForwardTmp
		out.Chain.Layers, out.Sent = append(out.Chain.Layers, unit), append(out.Sent, l.Output)
	}
	at := front
	for _, n := range rest {
		at += n
		out.Sent = append(out.Sent, found.Layers[at-1].Output)
	}
	if first.Name = found.Layers[front].Name; rest[0] > 1 {
		first.Name += ".." + found.Layers[front+rest[0]-1].Name
	}
	out.Chain.Input, out.Chain.Layers = c.Given, append(out.Chain.Layers, own...)
	out.Chain.Carries, out.Chain.GradientCarries = later(c.Carries, passed, front), later(c.GradientCarries,
		passed, front)
	if c.Deferred != nil {
		out.Chain.Deferred = append(make([]remat.Deferred, front), c.Deferred...)
	}
	return out, units
}

// frozenInFront is how many layers come before the first that is trained.
func frozenInFront(model *nn.Sequential) int {
	return max(slices.IndexFunc(model.Layers(),
		func(l nn.NamedLayer) bool { return len(nn.Params(l.Layer)) > 0 }), 0)
}

// later renumbers carries for front frozen units before the chain, of which passed were not in the chain. The
// chain's input is then the output of the last of these.
func later(list []remat.Carry, passed, front int) (out []remat.Carry) {
	for _, k := range list {
		switch {
		case k.From >= 0:
			k.From += front
		case passed > 0:
			k.From = passed - 1
		}
		k.To += front
		out = append(out, k)
	}
	return out
}

// untrained is, by unit, the bytes of buffers and of parameters that are not trained.
func untrained(model *nn.Sequential, units []int) (list []int64) {
	layers, at := model.Layers(), 0
	for _, n := range units {
		bytes := int64(0)
		for _, l := range layers[at:min(at+n, len(layers))] {
			for _, p := range nn.State(l.Layer) {
				if !p.Trainable() && !p.Shared() {
					bytes += p.Bytes()
				}
			}
		}
		list, at = append(list, bytes), at+n
	}
	return list
}
