package pipe

import (
	"penstock/schedule"
	"penstock/torch"
)

// backward adds the micro-batch's share to the gradients of the stage's parameters and leaves the
// gradients of what the stage was sent for those that sent it.
func (r *minibatch) backward(c *torch.Ctx, a schedule.Action) {
	stage, cell := r.p.stages[a.Stage], &r.cells[a.Stage][a.MicroBatch]
	c.SetGrad(false)
	if r.last(a.Stage) && cell.outGrad == nil {
		r.start(c, a, cell)
	}
	skips := make([][]*torch.Tensor, stage.leaving)
	for i, p := range stage.ports {
		if p.from.stage >= 0 {
			continue
		}
		for k, list := range cell.ports[i].grads {
			skips[p.place] = append(skips[p.place], list...)
			cell.ports[i].grads[k] = nil
		}
	}
	cell.execution.GiveGrads(cell.execution.Units(), cell.outGrad, skips)
	cell.outGrad = nil
	for i := range stage.ties {
		cell.execution.GiveTie(i, cell.ties[i].later)
		cell.ties[i].later = nil
	}
	defer stage.dropReplicaGrads() // of a backward that fails
	r.perform(c, a, r.work(a.Stage, a.MicroBatch).backward)
	r.settleGrads(c, a, stage, cell)
}

// start gives the last stage the gradients of its output, or of the loss.
func (r *minibatch) start(c *torch.Ctx, a schedule.Action, cell *cell) {
	if r.loss != nil {
		cell.outGrad = []*torch.Tensor{c.Keep(r.gradOfLoss(c, r.weight(a.MicroBatch)))}
		return
	}
	out, _, _ := cell.execution.Output()
	cell.outGrad = make([]*torch.Tensor, len(out))
	for j, g := range r.grads {
		if g != nil {
			cell.outGrad[j] = c.Keep(r.joined[j][a.MicroBatch].part(c, Value{Tensor: g}))
		}
	}
}

// settleGrads takes the gradients of what the stage was sent out of the execution.
func (r *minibatch) settleGrads(c *torch.Ctx, a schedule.Action, stage *Stage, cell *cell) {
	xs, skips := cell.execution.TakeGrads(0)
	if cell.inGrad = xs; a.Stage == 0 {
		r.giveInputs(c, a.MicroBatch, cell)
	}
	entering := 0
	for i, p := range stage.ports {
		s := &cell.ports[i]
		if p.pops > 0 {
			s.back, entering = skips[entering], entering+1
		}
	}
	for i, t := range stage.ties {
		if t.from.stage >= 0 {
			cell.ties[i].back = taken(c, t.tensor())
		}
	}
	if !r.retain {
		cell.out = nil
	}
}

// giveInputs sends the gradients that have come to the first stage on to the batch's inputs.
func (r *minibatch) giveInputs(c *torch.Ctx, microBatch int, cell *cell) {
	var parts, grads []*torch.Tensor
	c.SetGrad(true)
	for i, g := range cell.inGrad {
		if g != nil {
			parts, grads = append(parts, r.parts[microBatch].part(c, r.inputs[i])), append(grads, c.Adopt(g))
		}
	}
	cell.inGrad = nil
	if len(parts) > 0 {
		c.Backward(parts, grads, false)
	}
	c.SetGrad(false)
}

// taken moves a gradient out of where backward left it.
func taken(c *torch.Ctx, box *torch.Tensor) *torch.Tensor {
	g := c.GradOf(box)
	box.SetGradOf(nil)
	return c.Keep(g)
}
