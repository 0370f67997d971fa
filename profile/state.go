package profile

import (
	"slices"

	"penstock.example/nn"
	"penstock.example/torch"
)

// away reports whether a tensor is on another GPU than a device. Tests replace it.
var away = func(t *torch.Tensor, d torch.Device) bool { return d.Kind != torch.KindCPU && !t.On(d) }

// copied is a copy of a parameter or buffer, and how many layers use it now.
type copied struct {
	t    *torch.Tensor
	uses int
}

// ready makes a layer ready to run, until restore is called. It makes missing parameters, puts
// gradients aside, and saves buffers, which layers change. It copies parameters from other GPUs, and
// shared ones for a lane. If ready panics, nothing has changed.
func (p *prober) ready(l nn.NamedLayer) (restore func()) {
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
	shared := nn.Shared(l.Layer)
	seen := map[*nn.Param]bool{}
	for _, h := range slices.Concat(l.State(), shared) {
		if !seen[h.Param] && h.Exists() &&
			(away(h.Tensor(), p.Device) || p.isLane && slices.Contains(shared, h)) {
			seen[h.Param] = true
			undo = append(undo, p.copyHere(h))
		}
	}
	var missing []nn.NamedParam
	for _, s := range l.State() {
		q := s.Param.Owner()
		if !q.Exists() {
			missing = append(missing, nn.NamedParam{Name: s.Name, Param: q})
			undo = append(undo, q.Free)
		} else if s.IsBuffer() {
			t, was := s.Tensor(), p.c.Clone(s.Tensor())
			// Always, as native_batch_norm is not counted as a change.
			undo = append(undo, func() { p.c.NoGrad(func() { p.c.Copy_(t, was) }) })
		}
	}
	nn.Materialise(p.c, missing, p.Seed)
	for _, s := range l.State() {
		if s.Trainable() {
			t := s.Tensor()
			grad := p.c.GradOf(t)
			t.SetGradOf(nil)
			undo = append(undo, func() { t.SetGradOf(grad) })
		}
	}
	done = true
	return restore
}

// copyHere gives a layer a copy of a parameter. All handles on one value get the same copy.
func (p *prober) copyHere(h nn.NamedParam) (restore func()) {
	value, was := h.Tensor(), h.Replica()
	b := p.copies[value]
	if b == nil {
		b = &copied{t: p.c.Keep(p.c.CopyHere(value)).SetRequiresGrad(h.Trainable())}
		p.copies[value] = b
	}
	b.uses++
	h.Replicate(b.t)
	return func() {
		h.Replicate(was)
		if b.uses--; b.uses == 0 {
			delete(p.copies, value)
			b.t.SetGradOf(nil)
			b.t.Free()
		}
	}
}
