package pipe

import (
	"cmp"
	"slices"

	"penstock/schedule"
	"penstock/segment"
	"penstock/torch"
)

// sendActivation sends what a forward has left for a later stage: to the next its output, to any
// the skips that are popped there and, with the first micro-batch, the values of parameters that
// both use.
func (r *minibatch) sendActivation(c *torch.Ctx, a schedule.Action) {
	stage, cell := r.p.stages[a.Stage], &r.cells[a.Stage][a.MicroBatch]
	var p parcel
	if a.Peer == a.Stage+1 {
		p.values, p.wants = cell.output(c)
	}
	for _, port := range r.p.stages[a.Peer].ports {
		if port.from.stage != a.Stage {
			continue
		}
		t, wants := cell.ports[port.from.index].stashed(c)
		p.skips, p.wantsSkips = append(p.skips, []*torch.Tensor{t}), append(p.wantsSkips, wants)
	}
	if a.MicroBatch == 0 {
		for _, t := range stage.ties {
			if t.to.stage == a.Peer {
				p.ties = append(p.ties, c.Keep(c.Detach(t.tensor())))
			}
		}
	}
	r.link.send(a, p)
}

// output is what a stage sends to the next, outside of any graph, and whether each of it can want a
// gradient: whether it requires one or, where its graph is still to be made, in any case.
func (c *cell) output(t *torch.Ctx) (values []*torch.Tensor, wants []bool) {
	from := c.sent
	if from == nil {
		from = c.out
	}
	values, wants = make([]*torch.Tensor, len(from)), make([]bool, len(from))
	for i, x := range from {
		if k := slices.Index(from[:i], x); k >= 0 {
			values[i] = values[k]
			continue
		}
		values[i], wants[i] = t.Keep(t.Detach(x)), c.sent != nil || x.RequiresGrad()
	}
	torch.FreeAll(c.sent)
	c.sent = nil
	return values, wants
}

// stashed is what a skip's port sends to the next of the stages that it goes to, outside of any
// graph, nil if the skip is absent, and whether it can want a gradient.
func (s *passage) stashed(c *torch.Ctx) (t *torch.Tensor, wants bool) {
	if from := cmp.Or(s.sent, s.out); from != nil {
		t, wants = c.Keep(c.Detach(from)), s.sent != nil || from.RequiresGrad()
	}
	if s.left--; s.left == 0 {
		s.sent.Free()
		s.sent = nil
	}
	return t, wants
}

// receiveActivation takes over what an earlier stage has sent.
func (r *minibatch) receiveActivation(c *torch.Ctx, a schedule.Action) {
	stage, cell := r.p.stages[a.Stage], &r.cells[a.Stage][a.MicroBatch]
	p := r.link.receive(a.Matching())
	defer func() { p.free() }()
	for _, t := range stage.ties {
		if t.from.stage == a.Peer && a.MicroBatch == 0 {
			r.p.refresh(c, stage, t, p.ties[0])
			p.ties[0].Free()
			p.ties = p.ties[1:]
		}
	}
	if a.Peer == a.Stage-1 {
		cell.in = segment.Arrival{Tensors: r.moved(c, a, p.values), Wants: make([]bool, len(p.values))}
		for i, t := range cell.in.Tensors {
			cell.in.Wants[i] = p.wants[i] && r.wantsGrad(a.Stage, t)
		}
		p.values = nil
	}
	at := 0
	for i, port := range stage.ports {
		if port.from.stage != a.Peer {
			continue
		}
		if t := r.moved(c, a, p.skips[at])[0]; t != nil {
			cell.ports[i].in, cell.ports[i].wants = t, p.wantsSkips[at] && r.wantsGrad(a.Stage, t)
		}
		p.skips[at] = nil
		at++
	}
}

// wantsGrad says whether there is anything to train before a stage, so that a tensor which is sent
// there brings a gradient back.
func (r *minibatch) wantsGrad(stage int, t *torch.Tensor) bool {
	return r.graph && t.DType().IsFloat() && (r.p.stages[stage].inputGrad || r.inputGrad)
}

// sendGradient sends the gradients of what an earlier stage has sent here, and of the parameters
// that both use. A nil gradient says that the loss does not depend on it.
func (r *minibatch) sendGradient(_ *torch.Ctx, a schedule.Action) {
	stage, cell := r.p.stages[a.Stage], &r.cells[a.Stage][a.MicroBatch]
	var p parcel
	if a.Peer == a.Stage-1 {
		p.values, cell.inGrad = cell.inGrad, nil
	}
	for i, port := range stage.ports {
		if port.from.stage == a.Peer {
			p.skips = append(p.skips, cell.ports[i].back)
			cell.ports[i].back = nil
		}
	}
	for i, t := range stage.ties {
		if t.from.stage == a.Peer {
			p.ties = append(p.ties, cell.ties[i].back)
			cell.ties[i].back = nil
		}
	}
	r.link.send(a, p)
}

// receiveGradient takes over the gradients that a later stage has sent.
func (r *minibatch) receiveGradient(c *torch.Ctx, a schedule.Action) {
	stage, cell := r.p.stages[a.Stage], &r.cells[a.Stage][a.MicroBatch]
	p := r.link.receive(a.Matching())
	defer func() { p.free() }()
	if a.Peer == a.Stage+1 {
		cell.outGrad, p.values = r.moved(c, a, p.values), nil
	}
	at := 0
	for i, port := range r.p.stages[a.Peer].ports {
		if port.from.stage != a.Stage {
			continue
		}
		here := port.from.index
		target := slices.Index(stage.ports[here].to, target{a.Peer, i})
		cell.ports[here].grads[target] = r.moved(c, a, p.skips[at])
		p.skips[at] = nil
		at++
	}
	for i, t := range stage.ties {
		if t.to.stage == a.Peer {
			cell.ties[i].later, p.ties = r.moved(c, a, p.ties[:1])[0], p.ties[1:]
		}
	}
}

// moved brings tensors to the receiving stage's device and frees what they were there for: they are
// copied, unless the sender is on the same device. The tensors are the receiver's then, kept.
func (r *minibatch) moved(c *torch.Ctx, a schedule.Action, list []*torch.Tensor) []*torch.Tensor {
	if r.p.stages[a.Peer].Device == r.p.stages[a.Stage].Device {
		return list
	}
	out := make([]*torch.Tensor, len(list))
	for i, t := range list {
		switch k := slices.Index(list[:i], t); {
		case t == nil:
		case k >= 0:
			out[i] = out[k]
		default:
			out[i] = c.CopyHere(t)
		}
	}
	for _, t := range out { // not before: a copy that fails would leave those before it
		c.Keep(t)
	}
	torch.FreeAll(list)
	return out
}
