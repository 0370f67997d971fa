package pipe

import (
	"slices"

	"penstock/schedule"
	"penstock/segment"
	"penstock/torch"
)

// receive takes over what another stage sends: from the one before its output, and from any the skips that are popped or relayed here. The first micro-batch brings the
// values of parameters that the sender uses too.
func (r *minibatch) receive(c *torch.Ctx, a schedule.Action) {
	stage := r.p.stages[a.Stage]
	from, to := &r.cells[a.Source][a.MicroBatch], &r.cells[a.Stage][a.MicroBatch]
	if a.MicroBatch == 0 {
		for _, t := range stage.ties {
			if t.from.stage == a.Source {
				r.p.refresh(c, stage, t)
			}
		}
	}
	if a.Source == a.Stage-1 {
		r.receiveOutput(c, a, from, to)
	}
	for i, p := range stage.ports {
		if p.from.stage != a.Source {
			continue
		}
		s, d := &from.ports[p.from.index], &to.ports[i]
		t := s.sent
		if t == nil {
			t = s.out
		}
		if t != nil {
			d.in = c.Keep(r.moved(c, t, a))
			d.wants = r.wantsGrad(a.Stage, t, s.sent == nil)
		}
		if s.pending.Add(-1) == 0 {
			s.sent.Free()
			s.sent = nil
		}
	}
}

func (r *minibatch) receiveOutput(c *torch.Ctx, a schedule.Action, from, to *cell) {
	source := from.sent
	if source == nil {
		source = from.out
	}
	to.in = segment.Arrival{Tensors: make([]*torch.Tensor, len(source)), Wants: make([]bool, len(source))}
	in := to.in.Tensors
	for i, t := range source {
		if k := slices.Index(source[:i], t); k >= 0 {
			in[i] = in[k]
			continue
		}
		in[i] = c.Keep(r.moved(c, t, a))
		to.in.Wants[i] = r.wantsGrad(a.Stage, t, from.sent == nil)
	}
	torch.FreeAll(from.sent)
	from.sent = nil
}

// wantsGrad says whether a tensor that is sent to a stage is to bring a gradient back. Where its graph is still to be made, it is assumed to want one.
func (r *minibatch) wantsGrad(stage int, t *torch.Tensor, graph bool) bool {
	return r.graph && t.DType().IsFloat() && (t.RequiresGrad() || !graph) && (r.p.stages[stage].inputGrad || r.inputGrad)
}

// moved is a tensor on the receiving stage's device: a copy, unless the sender is on the same device.
func (r *minibatch) moved(c *torch.Ctx, t *torch.Tensor, a schedule.Action) *torch.Tensor {
	if r.sameDevice(a) {
		return c.Detach(t)
	}
	return c.CopyHere(t)
}

func (r *minibatch) sameDevice(a schedule.Action) bool {
	return r.p.stages[a.Source].Device == r.p.stages[a.Stage].Device
}

// receiveGradient takes over the gradients of what was sent to another stage, and of the parameters that both use. A nil gradient says that the loss does not depend on it.
func (r *minibatch) receiveGradient(c *torch.Ctx, a schedule.Action) {
	source := r.p.stages[a.Source]
	from, to := &r.cells[a.Source][a.MicroBatch], &r.cells[a.Stage][a.MicroBatch]
	if a.Source == a.Stage+1 {
		to.outGrad, from.inGrad = r.taken(c, from.inGrad, a), nil
	}
	for i, p := range source.ports {
		if p.from.stage == a.Stage {
			at := slices.Index(r.p.stages[a.Stage].ports[p.from.index].to, target{a.Source, i})
			to.ports[p.from.index].grads[at], from.ports[i].back = r.taken(c, from.ports[i].back, a), nil
		}
	}
	for i, t := range source.ties {
		if t.from.stage == a.Stage {
			to.ties[t.from.index].later = r.taken(c, []*torch.Tensor{from.ties[i].back}, a)[0]
			from.ties[i].back = nil
		}
	}
}

// taken moves gradients to the receiving stage's device.
func (r *minibatch) taken(c *torch.Ctx, grads []*torch.Tensor, a schedule.Action) []*torch.Tensor {
	if r.sameDevice(a) {
		return slices.Clone(grads)
	}
	out := make([]*torch.Tensor, len(grads))
	for i, g := range grads {
		if g != nil {
			out[i] = c.Keep(c.CopyHere(g))
			g.Free()
		}
	}
	return out
}
