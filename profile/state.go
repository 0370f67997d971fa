package profile

import (
	"slices"

	"penstock.example/internal/engine"
	"penstock.example/nn"
	"penstock.example/torch"
)

// away reports whether a tensor is on another GPU than a device. Tests replace it.
var away = func(t *torch.Tensor, d torch.Device) bool { return d.Kind != torch.KindCPU && !t.On(d) }

// ready makes a layer ready to run, until the prober's reset. It makes missing parameters, puts
// gradients aside, and saves buffers, which layers change. It copies parameters from other GPUs,
// and shared ones for a lane.
func (p *prober) ready(l nn.NamedLayer) {
	shared := nn.Shared(l.Layer)
	seen := map[*nn.Param]bool{}
	for _, h := range slices.Concat(l.State(), shared) {
		if !seen[h.Param] && h.Exists() &&
			(away(h.Tensor(), p.Device) || p.isLane && slices.Contains(shared, h)) {
			seen[h.Param] = true
			p.copyHere(h)
		}
	}
	var missing []nn.NamedParam
	for _, s := range l.State() {
		q := s.Param.Owner()
		if !q.Exists() {
			missing = append(missing, nn.NamedParam{Name: s.Name, Param: q})
			p.undo = append(p.undo, q.Free)
		} else if s.IsBuffer() {
			t, was := s.Tensor(), p.c.Clone(s.Tensor())
			// Always: Tensor.Changes does not count what native_batch_norm writes.
			p.undo = append(p.undo, func() { p.c.NoGrad(func() { p.c.Copy_(t, was) }) })
		}
	}
	nn.Materialise(p.c, missing, p.Seed)
	for _, s := range l.State() {
		if s.Trainable() {
			p.undo = append(p.undo, engine.HideGrads(p.c, s.Tensor()))
		}
	}
}

// copyHere gives a layer a copy of a parameter. All handles on one value get the same copy.
func (p *prober) copyHere(h nn.NamedParam) {
	value, was := h.Tensor(), h.Replica()
	if p.copies[value] == nil {
		t := p.c.Keep(p.c.CopyHere(value)).SetRequiresGrad(h.Trainable())
		p.copies[value] = t
		p.undo = append(p.undo, func() {
			delete(p.copies, value)
			t.SetGradOf(nil)
			t.Free()
		})
	}
	h.Replicate(p.copies[value])
	p.undo = append(p.undo, func() { h.Replicate(was) })
}

// reset undoes, latest first, all changes for the layers that ran, and frees their tensors.
func (p *prober) reset() {
	for _, undo := range slices.Backward(p.undo) {
		undo()
	}
	p.undo = nil
	p.endQueue(nil)
	p.c.Close()
}
