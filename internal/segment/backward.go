package segment

import (
	"slices"

	"penstock.example/internal/engine"
	"penstock.example/torch"
)

// backward computes the gradients of a unit's input. It adds to the gradients of the unit's
// parameters, or with Defer leaves them to Weights.
func (e *Execution) backward(c *torch.Ctx, at int) {
	u, g, y := &e.s.units[at], &e.at[at].graph, &e.at[at+1].grads
	if !g.made {
		e.refuse(c, "unit %d has no graph to go back through", at)
	}
	begin := c.Mark()
	e.running = g.context
	c.SetGrad(false)
	var roots, starts []*torch.Tensor
	root := func(t, grad *torch.Tensor) {
		if t != nil && grad != nil && t.RequiresGrad() {
			roots, starts = append(roots, t), append(starts, grad)
		}
	}
	for j, t := range g.out {
		if j < len(y.xs) {
			root(t, y.xs[j])
		}
	}
	for i, s := range u.stashed {
		if s.out < len(y.skips) {
			root(g.stashed[i], fold(c, y.skips[s.out]))
		}
	}
	for i, k := range u.ties {
		root(u.handles[i].Tensor(), e.ties[k])
	}
	if len(roots) > 0 {
		e.descend(c, at, roots, starts)
	}
	e.settle(c, at)
	e.running = nil
	c.Release(begin)
}

// descend runs backward through a unit's graph.
func (e *Execution) descend(c *torch.Ctx, at int, roots, starts []*torch.Tensor) {
	defer e.hideTies(c, at)()
	if keep := e.keeps(e.at[at].graph.beforeLoss); keep || e.s.cfg.Hold && !e.Defer {
		c.Backward(roots, starts, keep)
	} else {
		e.consume(c, at, roots, starts)
	}
}

// consume runs backward through a unit's graph, and frees output, gradients and graph on the way.
func (e *Execution) consume(c *torch.Ctx, at int, roots, starts []*torch.Tensor) {
	g, y := &e.at[at].graph, &e.at[at+1].grads
	prepared := engine.PrepareBackward(c, roots, starts)
	defer prepared.Free()
	if e.Defer {
		e.deferred = append(e.deferred, weightBackward{prepared.Split(e.s.trainedTies(at)...), g.context})
	}
	torch.FreeAll(g.out)
	torch.FreeAll(g.stashed)
	torch.FreeAll(y.xs)
	for _, s := range e.s.units[at].stashed {
		if s.out < len(y.skips) {
			torch.FreeAll(y.skips[s.out])
		}
	}
	for _, t := range starts { // also sums of skips' gradients
		if c.Owns(t) {
			t.Free()
		}
	}
	e.freeInput(at + 1)
	prepared.Run()
}

// freeInput frees the input of a unit, unless a further backward needs it.
func (e *Execution) freeInput(unit int) {
	if s := &e.at[unit].state; unit < len(e.s.units) && !e.keeps(s.beforeLoss) {
		s.free()
	}
}

// settle gathers the gradients from the mailboxes, and frees everything that backward has used.
func (e *Execution) settle(c *torch.Ctx, at int) {
	u, g, y := &e.s.units[at], &e.at[at].graph, &e.at[at+1].grads
	x := grads{xs: make([]*torch.Tensor, len(g.mail)), skips: make([][]*torch.Tensor, len(u.entering))}
	for i, box := range g.mail {
		x.xs[i] = takeGrad(c, box)
	}
	for i, p := range u.entering {
		x.skips[i] = make([]*torch.Tensor, p.times)
		for k, box := range g.skipMail[i] {
			x.skips[i][k] = takeGrad(c, box)
		}
		if p.out >= 0 && p.out < len(y.skips) { // of later pops
			x.skips[i], y.skips[p.out] = append(x.skips[i], y.skips[p.out]...), nil
		}
	}
	y.free()
	e.at[at].grads = x
	if at == 0 { // later pops do not know that a skip's gradient is unwanted
		for place, wanted := range e.at[0].state.wantsSkips {
			if !wanted {
				torch.FreeAll(x.skips[place])
				clear(x.skips[place])
			}
		}
	}
	for _, k := range u.ties {
		if e.s.ties[k].first == at {
			e.ties[k].Free()
			e.ties[k] = nil
		}
	}
	e.freeInput(at + 1)
	if !e.keeps(g.beforeLoss) {
		g.free()
	}
	if e.ownsInput(at) {
		e.freeInput(at)
	}
}

// takeGrad moves a gradient out of a mailbox.
func takeGrad(c *torch.Ctx, box *torch.Tensor) *torch.Tensor {
	if box == nil {
		return nil
	}
	return c.Keep(c.TakeGrad(box))
}

// fold sums the gradients of a skip's pops in autograd's order: latest pop first.
func fold(c *torch.Ctx, list []*torch.Tensor) *torch.Tensor {
	var sum *torch.Tensor
	for _, g := range slices.Backward(list) {
		switch {
		case g == nil:
		case sum == nil:
			sum = g
		default:
			sum = c.Add(sum, g)
		}
	}
	return sum
}
