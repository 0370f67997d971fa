package pipe

import (
	"penstock/schedule"
	"penstock/torch"
)

// backward adds the micro-batch's share to the gradients of the stage's parameters and leaves the gradients of what the stage was sent for those that sent it.
func (r *minibatch) backward(c *torch.Ctx, a schedule.Action) {
	stage, cell := r.p.stages[a.Stage], &r.cells[a.Stage][a.MicroBatch]
	c.SetGrad(false)
	if r.last(a.Stage) {
		switch {
		case r.loss != nil:
			cell.outGrad = []*torch.Tensor{r.gradOfLoss(c, cell.out[0], r.weight(a.MicroBatch))}
		default:
			cell.outGrad = make([]*torch.Tensor, len(cell.out))
			for j, g := range r.grads {
				if g != nil {
					cell.outGrad[j] = c.Keep(r.joined[j][a.MicroBatch].part(c, Rows(g)))
				}
			}
		}
	}
	var roots, grads []*torch.Tensor
	root := func(t, grad *torch.Tensor) {
		if t != nil && grad != nil && t.RequiresGrad() {
			roots, grads = append(roots, t), append(grads, grad)
		}
	}
	for j, t := range cell.out {
		if j < len(cell.outGrad) {
			root(t, cell.outGrad[j])
		}
	}
	for i := range cell.ports {
		if p := &cell.ports[i]; p.out != nil {
			root(p.out, fold(c, p.grads...))
		}
	}
	for i, t := range stage.ties {
		root(t.tensor(), cell.ties[i].later)
	}
	if len(roots) > 0 {
		defer stage.dropReplicaGrads() // of a backward that fails
		c.Backward(roots, grads, r.retain)
	}
	r.settleGrads(c, stage, cell, a)
}

// settleGrads gathers what backward left in the mailboxes and lets go of what it used.
func (r *minibatch) settleGrads(c *torch.Ctx, stage *Stage, cell *cell, a schedule.Action) {
	if r.loss != nil && r.last(a.Stage) {
		cell.outGrad = nil // r.lossGrad
	}
	free(cell.outGrad)
	cell.outGrad = nil
	cell.inGrad = make([]*torch.Tensor, len(cell.mail))
	for i, box := range cell.mail {
		cell.inGrad[i] = taken(c, box)
	}
	for i, p := range stage.ports {
		s := &cell.ports[i]
		for _, box := range s.mail {
			s.back = append(s.back, taken(c, box))
		}
		for k, list := range s.grads {
			if p.from.stage >= 0 {
				s.back = append(s.back, list...)
			} else {
				free(list)
			}
			s.grads[k] = nil
		}
	}
	for i, t := range stage.ties {
		s := &cell.ties[i]
		s.later.Free()
		s.later = nil
		if t.from.stage >= 0 {
			s.back = taken(c, t.tensor())
		}
	}
	recomputes := r.recomputes(a.Stage, a.MicroBatch)
	if !r.retain || recomputes {
		free(cell.out)
		cell.out, cell.ran = nil, nil
		for i := range cell.ports {
			cell.ports[i].out.Free()
			cell.ports[i].out = nil
		}
	}
	if !r.retain {
		cell.drop()
		free(cell.mail)
		cell.mail = nil
		for i := range cell.ports {
			free(cell.ports[i].mail)
			cell.ports[i].mail = nil
		}
	}
}

// taken moves a gradient out of where backward left it.
func taken(c *torch.Ctx, box *torch.Tensor) *torch.Tensor {
	if box == nil {
		return nil
	}
	g := c.GradOf(box)
	box.SetGradOf(nil)
	return c.Keep(g)
}

// fold sums gradients as one backward through all their stages would: what was recorded last comes first.
func fold(c *torch.Ctx, lists ...[]*torch.Tensor) *torch.Tensor {
	var sum *torch.Tensor
	for k := len(lists) - 1; k >= 0; k-- {
		for i := len(lists[k]) - 1; i >= 0; i-- {
			switch g := lists[k][i]; {
			case g == nil:
			case sum == nil:
				sum = g
			default:
				sum = c.Add(sum, g)
			}
		}
	}
	return sum
}
