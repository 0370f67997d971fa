package segment

import (
	"penstock.example/internal/engine"
	"penstock.example/torch"
)

// backward computes the gradients of a unit's input. It adds to the gradients of its parameters, or defers
// that.
func (e *Execution) backward(c *torch.Ctx, at int) {
	u, g, y := &e.s.units[at], &e.at[at].graph, &e.at[at+1].grads
	if !g.made {
		e.refuse(c, "unit %d goes back and has no graph", at)
	}
	begin := c.Mark()
	e.running = g.ran
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
		restore := e.aside(c, at)
		defer restore() // also of a backward that fails
		if keep := e.stays(g.early); keep || e.s.hold && !e.Defer {
			c.Backward(roots, starts, keep)
		} else {
			e.consume(c, at, roots, starts)
		}
		restore()
	}
	e.settle(c, at)
	e.running = nil
	c.Release(begin)
}

// consume goes backward through a unit's graph and frees the output, its gradients and the graph as
// it goes.
func (e *Execution) consume(c *torch.Ctx, at int, roots, starts []*torch.Tensor) {
	g, y := &e.at[at].graph, &e.at[at+1].grads
	prepared := engine.PrepareBackward(c, roots, starts)
	defer prepared.Free()
	if e.Defer {
		e.later = append(e.later, later{prepared.Split(e.s.tied(at)...), g.ran})
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
	if s := &e.at[at+1].state; at+1 < len(e.s.units) && !e.stays(s.early) {
		s.free()
	}
	prepared.Run()
}

// settle gathers the gradients that backward left in the mailboxes, and frees what backward has
// used.
func (e *Execution) settle(c *torch.Ctx, at int) {
	u, g, y := &e.s.units[at], &e.at[at].graph, &e.at[at+1].grads
	x := grads{xs: make([]*torch.Tensor, len(g.mail)),
		skips: make([][]*torch.Tensor, len(u.popped)+len(u.passed))}
	for i, box := range g.mail {
		x.xs[i] = taken(c, box)
	}
	later := func(out int) (list []*torch.Tensor) {
		if out >= 0 && out < len(y.skips) {
			list, y.skips[out] = y.skips[out], nil
		}
		return list
	}
	for i, p := range u.popped {
		list := make([]*torch.Tensor, p.times)
		for k, box := range g.skipMail[i] {
			list[k] = taken(c, box)
		}
		x.skips[p.in] = append(list, later(p.out)...)
	}
	for _, p := range u.passed {
		x.skips[p[0]] = later(p[1])
	}
	y.free()
	e.at[at].grads = x
	if at == 0 { // the gradient of a skip was assumed to be wanted, and is not
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
	if s := &e.at[at+1].state; at+1 < len(e.s.units) && !e.stays(s.early) {
		s.free()
	}
	if !e.stays(g.early) {
		g.free()
	}
	if s := &e.at[at].state; e.alone(at) && !e.stays(s.early) {
		s.free()
	}
}

// taken moves a gradient out of a mailbox.
func taken(c *torch.Ctx, box *torch.Tensor) *torch.Tensor {
	if box == nil {
		return nil
	}
	return c.Keep(c.TakeGrad(box))
}

// fold sums the gradients of a skip's pops as one backward through all of them would: latest pop
// first.
func fold(c *torch.Ctx, list []*torch.Tensor) *torch.Tensor {
	var sum *torch.Tensor
	for i := len(list) - 1; i >= 0; i-- {
		switch g := list[i]; {
		case g == nil:
		case sum == nil:
			sum = g
		default:
			sum = c.Add(sum, g)
		}
	}
	return sum
}
