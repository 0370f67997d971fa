package pipe

import (
	"cmp"
	"slices"

	"penstock.example/internal/link"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// Between two stages move, in this order: the output of a stage, or the gradients of its inputs, if
// the stages are neighbours; each skip that passes between them, or the gradients of its pops, in
// the order of the later stage's skips; each parameter that both use, or its gradient, in the order
// of the later stage's ties. Parameters move with the first micro-batch alone.

// sendActivation sends what a forward has made for a later stage.
func (r *run) sendActivation(c *torch.Ctx, a schedule.Action) error {
	stage, state := r.p.stages[a.Stage], &r.states[a.Stage][a.MicroBatch]
	p := link.Parcel{Device: stage.Device}
	if a.Peer == a.Stage+1 {
		p.Add(state.output(c, r.p.optimal()))
	}
	for _, skip := range r.p.stages[a.Peer].skips {
		if skip.from.stage == a.Stage {
			p.Add(state.skips[skip.from.index].stashed(c, r.p.optimal()))
		}
	}
	for _, t := range stage.ties {
		if t.to.stage == a.Peer && a.MicroBatch == 0 {
			p.Add(link.Values(c.Keep(c.Detach(t.tensor()))))
		}
	}
	return r.send(c, a, p)
}

// send gives a parcel to the link. Its values are there when the work queued so far is done.
func (r *run) send(c *torch.Ctx, a schedule.Action, p link.Parcel) error {
	p.Ready = r.p.workers[r.p.stages[a.Stage].worker].stream.Record()
	return r.link.Send(c, a, p)
}

// output is what a stage sends to the next, without a graph. A gradient of a tensor can be wanted
// if the tensor requires one, or if its graph is not made yet, or assumed is set: plans assume it.
func (c *microBatch) output(t *torch.Ctx, assumed bool) []link.Value {
	from, given := c.sent, c.sent != nil
	if !given {
		from = c.out
	}
	c.sent = nil
	values := make([]link.Value, len(from))
	for i, x := range from {
		if k := slices.Index(from[:i], x); k >= 0 {
			values[i].Tensor = values[k].Tensor
			continue
		}
		trained := x.RequiresGrad()
		values[i] = link.Value{Tensor: x, Wants: assumed || given || trained}
		if !given || trained { // a parameter that a layer returned is
			values[i].Tensor = t.Keep(t.Detach(x))
		}
	}
	if given {
		for i, x := range from {
			if values[i].Tensor != x {
				x.Free()
			}
		}
	}
	return values
}

// stashed is the value of a skip for the next of the stages that pop it, without a graph. It is
// absent if the skip is. assumed is as in output.
func (s *skipState) stashed(c *torch.Ctx, assumed bool) []link.Value {
	var v link.Value
	if from := cmp.Or(s.sent, s.out); from != nil {
		v = link.Value{Tensor: c.Keep(c.Detach(from)), Wants: assumed || s.sent != nil || from.RequiresGrad()}
	}
	if s.left--; s.left == 0 {
		s.sent.Free()
		s.sent = nil
	}
	return []link.Value{v}
}

// receiveActivation receives what an earlier stage has sent.
func (r *run) receiveActivation(c *torch.Ctx, a schedule.Action) error {
	stage, state := r.p.stages[a.Stage], &r.states[a.Stage][a.MicroBatch]
	p, err := r.link.Receive(c, a.Matching())
	if err != nil {
		return err
	}
	defer func() { p.Free() }()
	if a.Peer == a.Stage-1 {
		state.in.Tensors, state.in.Wants = r.arrived(c, a, &p)
	}
	for i, skip := range stage.skips {
		if skip.from.stage != a.Peer {
			continue
		}
		ts, wants := r.arrived(c, a, &p)
		state.skips[i].in, state.skips[i].wants = ts[0], wants[0]
	}
	for _, t := range stage.ties {
		if t.from.stage == a.Peer && a.MicroBatch == 0 {
			value, from := p.Lists()[0][0].Tensor, p.Device
			if _, queued := r.p.route(a.Peer, a.Stage); queued {
				value = r.arrives(c, a, &p)[0]
			} else {
				p.Take()
			}
			r.p.refresh(c, stage, t, value, from)
			value.Free()
		}
	}
	return nil
}

// arrived takes the next activations out of a parcel, and says for each of them whether the stage
// has to send back a gradient: something before the stage is trained, or the batch wants a gradient.
func (r *run) arrived(c *torch.Ctx, a schedule.Action, p *link.Parcel) ([]*torch.Tensor, []bool) {
	list := p.Lists()[0]
	out, wants := r.arrives(c, a, p), make([]bool, len(list))
	for i, t := range out {
		wants[i] = t != nil && list[i].Wants && r.back && t.DType().IsFloat() &&
			(r.p.stages[a.Stage].inputGrad || r.inputGrad)
	}
	return out, wants
}

// sendGradient sends the gradients of what the earlier stage sent here, and of the parameters that
// both use. A nil gradient says that the loss does not depend on the tensor.
func (r *run) sendGradient(c *torch.Ctx, a schedule.Action) error {
	stage, state := r.p.stages[a.Stage], &r.states[a.Stage][a.MicroBatch]
	p := link.Parcel{Device: stage.Device}
	if a.Peer == a.Stage-1 {
		p.Add(link.Values(state.inGrad...))
		state.inGrad = nil
	}
	for i, skip := range stage.skips {
		if skip.from.stage == a.Peer {
			p.Add(link.Values(state.skips[i].back...))
			state.skips[i].back = nil
		}
	}
	for i, t := range stage.ties {
		if t.from.stage == a.Peer {
			p.Add(link.Values(state.ties[i].back))
			state.ties[i].back = nil
		}
	}
	return r.send(c, a, p)
}

// receiveGradient receives the gradients that a later stage has sent.
func (r *run) receiveGradient(c *torch.Ctx, a schedule.Action) error {
	stage, state := r.p.stages[a.Stage], &r.states[a.Stage][a.MicroBatch]
	p, err := r.link.Receive(c, a.Matching())
	if err != nil {
		return err
	}
	defer func() { p.Free() }()
	take := func() []*torch.Tensor { return r.arrives(c, a, &p) }
	if a.Peer == a.Stage+1 {
		state.outGrad = take()
	}
	for i, skip := range r.p.stages[a.Peer].skips {
		if skip.from.stage == a.Stage {
			here := skip.from.index
			use := slices.Index(stage.skips[here].to, location{a.Peer, i})
			state.skips[here].grads[use] = take()
		}
	}
	for i, t := range stage.ties {
		if t.to.stage == a.Peer {
			state.ties[i].later = take()[0]
		}
	}
	return nil
}
