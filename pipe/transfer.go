package pipe

import (
	"cmp"
	"slices"

	"penstock/schedule"
	"penstock/segment"
	"penstock/torch"
)

// sendActivation sends what a forward has made for a later stage. The next stage gets the output.
// Any later stage gets the skips that it pops. With the first micro-batch it gets the parameters
// that both stages use.
func (r *minibatch) sendActivation(c *torch.Ctx, a schedule.Action) {
	stage, state := r.p.stages[a.Stage], &r.states[a.Stage][a.MicroBatch]
	var p parcel
	if a.Peer == a.Stage+1 {
		p.values, p.wants = state.output(c)
	}
	for _, skip := range r.p.stages[a.Peer].skips {
		if skip.from.stage != a.Stage {
			continue
		}
		t, wants := state.skips[skip.from.index].stashed(c)
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

// output is what a stage sends to the next, without a graph. It also says of each tensor whether a
// gradient of it can be wanted: if it requires one, or if its graph is not made yet.
func (c *microBatchState) output(t *torch.Ctx) (values []*torch.Tensor, wants []bool) {
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

// stashed is the value of a skip for the next of the stages that pop it, without a graph. It is nil
// if the skip is absent. It also says whether a gradient of it can be wanted.
func (s *skipState) stashed(c *torch.Ctx) (t *torch.Tensor, wants bool) {
	if from := cmp.Or(s.sent, s.out); from != nil {
		t, wants = c.Keep(c.Detach(from)), s.sent != nil || from.RequiresGrad()
	}
	if s.left--; s.left == 0 {
		s.sent.Free()
		s.sent = nil
	}
	return t, wants
}

// receiveActivation receives what an earlier stage has sent.
func (r *minibatch) receiveActivation(c *torch.Ctx, a schedule.Action) {
	stage, state := r.p.stages[a.Stage], &r.states[a.Stage][a.MicroBatch]
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
		state.in = segment.Arrival{Tensors: r.moved(c, a, p.values), Wants: make([]bool, len(p.values))}
		for i, t := range state.in.Tensors {
			state.in.Wants[i] = p.wants[i] && r.wantsGrad(a.Stage, t)
		}
		p.values = nil
	}
	at := 0
	for i, skip := range stage.skips {
		if skip.from.stage != a.Peer {
			continue
		}
		if t := r.moved(c, a, p.skips[at])[0]; t != nil {
			state.skips[i].in, state.skips[i].wants = t, p.wantsSkips[at] && r.wantsGrad(a.Stage, t)
		}
		p.skips[at] = nil
		at++
	}
}

// wantsGrad says whether a stage has to send back a gradient of a tensor that it receives:
// something before the stage is trained, or the batch wants a gradient.
func (r *minibatch) wantsGrad(stage int, t *torch.Tensor) bool {
	return r.graph && t.DType().IsFloat() && (r.p.stages[stage].inputGrad || r.inputGrad)
}

// sendGradient sends the gradients of what the earlier stage sent here, and of the parameters that
// both use. A nil gradient says that the loss does not depend on the tensor.
func (r *minibatch) sendGradient(_ *torch.Ctx, a schedule.Action) {
	stage, state := r.p.stages[a.Stage], &r.states[a.Stage][a.MicroBatch]
	var p parcel
	if a.Peer == a.Stage-1 {
		p.values, state.inGrad = state.inGrad, nil
	}
	for i, skip := range stage.skips {
		if skip.from.stage == a.Peer {
			p.skips = append(p.skips, state.skips[i].back)
			state.skips[i].back = nil
		}
	}
	for i, t := range stage.ties {
		if t.from.stage == a.Peer {
			p.ties = append(p.ties, state.ties[i].back)
			state.ties[i].back = nil
		}
	}
	r.link.send(a, p)
}

// receiveGradient receives the gradients that a later stage has sent.
func (r *minibatch) receiveGradient(c *torch.Ctx, a schedule.Action) {
	stage, state := r.p.stages[a.Stage], &r.states[a.Stage][a.MicroBatch]
	p := r.link.receive(a.Matching())
	defer func() { p.free() }()
	if a.Peer == a.Stage+1 {
		state.outGrad, p.values = r.moved(c, a, p.values), nil
	}
	at := 0
	for i, skip := range r.p.stages[a.Peer].skips {
		if skip.from.stage != a.Stage {
			continue
		}
		here := skip.from.index
		use := slices.Index(stage.skips[here].to, location{a.Peer, i})
		state.skips[here].grads[use] = r.moved(c, a, p.skips[at])
		p.skips[at] = nil
		at++
	}
	for i, t := range stage.ties {
		if t.to.stage == a.Peer {
			state.ties[i].later, p.ties = r.moved(c, a, p.ties[:1])[0], p.ties[1:]
		}
	}
}

// moved brings tensors to the receiving stage's device. Tensors from another device are copied and
// then freed. Tensors from the same device are taken as they are. The result belongs to the
// receiver and is kept.
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
