package pipe

import (
	"penstock/schedule"
	"penstock/torch"
)

// backward adds the micro-batch's gradients to those of the stage's parameters, and keeps the
// gradients that have to be sent to earlier stages.
func (r *minibatch) backward(c *torch.Ctx, a schedule.Action) {
	stage, state := r.p.stages[a.Stage], &r.states[a.Stage][a.MicroBatch]
	c.SetGrad(false)
	if r.last(a.Stage) && state.outGrad == nil {
		r.start(c, a, state)
	}
	skips := make([][]*torch.Tensor, stage.leaving)
	for i, p := range stage.skips {
		if p.from.stage >= 0 {
			continue
		}
		for k, list := range state.skips[i].grads {
			skips[p.place] = append(skips[p.place], list...)
			state.skips[i].grads[k] = nil
		}
	}
	state.execution.GiveGrads(state.execution.Units(), state.outGrad, skips)
	state.outGrad = nil
	for i := range stage.ties {
		state.execution.GiveTie(i, state.ties[i].later)
		state.ties[i].later = nil
	}
	defer stage.dropReplicaGrads() // of a backward that fails
	r.perform(c, a, r.operations(a.Stage, a.MicroBatch).backward)
	r.takeInputGrads(c, a, stage, state)
}

// start gives the last stage the gradients of its output, or of the loss.
func (r *minibatch) start(c *torch.Ctx, a schedule.Action, state *microBatchState) {
	if r.loss != nil {
		state.outGrad = []*torch.Tensor{c.Keep(r.gradOfLoss(c, r.weight(a.MicroBatch)))}
		return
	}
	out, _, _ := state.execution.Output()
	state.outGrad = make([]*torch.Tensor, len(out))
	for j, g := range r.grads {
		if g != nil {
			state.outGrad[j] = c.Keep(r.joined[j][a.MicroBatch].part(c, Value{Tensor: g}))
		}
	}
}

// takeInputGrads takes the gradients of what the stage received out of the execution.
func (r *minibatch) takeInputGrads(c *torch.Ctx, a schedule.Action, stage *Stage, state *microBatchState) {
	xs, skips := state.execution.TakeGrads(0)
	if state.inGrad = xs; a.Stage == 0 {
		r.giveInputs(c, a.MicroBatch, state)
	}
	entering := 0
	for i, p := range stage.skips {
		s := &state.skips[i]
		if p.pops > 0 {
			s.back, entering = skips[entering], entering+1
		}
	}
	for i, t := range stage.ties {
		if t.from.stage >= 0 {
			state.ties[i].back = taken(c, t.tensor())
		}
	}
	if !r.retain {
		state.out = nil
	}
}

// giveInputs adds the gradients that reach the first stage to those of the batch's inputs.
func (r *minibatch) giveInputs(c *torch.Ctx, microBatch int, state *microBatchState) {
	var parts, grads []*torch.Tensor
	c.SetGrad(true)
	for i, g := range state.inGrad {
		if g != nil {
			parts, grads = append(parts, r.parts[microBatch].part(c, r.inputs[i])), append(grads, c.Adopt(g))
		}
	}
	state.inGrad = nil
	if len(parts) > 0 {
		c.Backward(parts, grads, false)
	}
	c.SetGrad(false)
}

// taken takes a gradient away from the tensor that backward accumulated it in. It is kept.
func taken(c *torch.Ctx, box *torch.Tensor) *torch.Tensor {
	g := c.GradOf(box)
	box.SetGradOf(nil)
	return c.Keep(g)
}
