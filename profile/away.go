package profile

import (
	"slices"

	"penstock.example/nn"
	"penstock.example/torch"
)

// The parameters of a pipe's stages are on several GPUs, and a model is measured on one. A layer whose
// parameters and buffers are elsewhere gets copies of them while it is measured.

// away says that a tensor is where operators on a device cannot use it.
var away = func(t *torch.Tensor, d torch.Device) bool { return d.Kind != torch.KindCPU && !t.On(d) }

// brought is a copy of a value that is away, and how many layers have it now.
type brought struct {
	t    *torch.Tensor
	uses int
}

// ready makes a layer ready to run on the device that measures, until restore is called: see bring and prepare.
func (p *prober) ready(l nn.NamedLayer) (restore func()) {
	back := p.bring(l)
	done := false
	defer func() {
		if !done {
			back()
		}
	}()
	undo := prepare(p.c, l, p.Seed)
	done = true
	return func() {
		undo()
		back()
	}
}

// bring gives a layer's handles on values that are away copies here. Handles on one value, of several layers
// too, get the same copy.
func (p *prober) bring(l nn.NamedLayer) (restore func()) {
	var undo []func()
	restore = func() {
		for _, u := range slices.Backward(undo) {
			u()
		}
	}
	done := false
	defer func() {
		if !done {
			restore()
		}
	}()
	seen := map[*nn.Param]bool{}
	for _, h := range slices.Concat(l.State(), nn.Shared(l.Layer)) {
		if seen[h.Param] || !p.isAway(h) {
			continue
		}
		seen[h.Param] = true
		value, was := h.Tensor(), h.Replica()
		b := p.brought[value]
		if b == nil {
			if p.brought == nil {
				p.brought = map[*torch.Tensor]*brought{}
			}
			b = &brought{t: p.c.Keep(p.c.CopyHere(value)).SetRequiresGrad(h.Trainable())}
			p.brought[value] = b
		}
		b.uses++
		h.Replicate(b.t)
		undo = append(undo, func() {
			h.Replicate(was)
			if b.uses--; b.uses == 0 {
				delete(p.brought, value)
				b.t.SetGradOf(nil)
				b.t.Free()
			}
		})
	}
	done = true
	return restore
}

// isAway says that a parameter exists and is away.
func (p *prober) isAway(h nn.NamedParam) bool { return h.Exists() && away(h.Tensor(), p.Device) }
