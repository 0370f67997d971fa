package segment

import (
	"fmt"

	"penstock/torch"
)

// backward adds a unit's share to the gradients of its parameters, and makes those of its input from those of its output.
func (w *Walk) backward(c *torch.Ctx, at int) {
	u, g, y := &w.s.units[at], &w.graphs[at], &w.grads[at+1]
	if !g.made {
		panic(&torch.Error{Op: "plan", Device: c.Device(), Message: fmt.Sprintf("unit %d goes back and has no graph", at)})
	}
	begin := c.Mark()
	w.running = g.ran
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
	for _, k := range u.ties {
		root(w.s.ties[k].handle.Tensor(), w.ties[k])
	}
	if len(roots) > 0 {
		restore := w.aside(c, at)
		defer restore() // of a backward that fails, too
		if keep := w.stays(g.early); keep || w.s.hold {
			c.Backward(roots, starts, keep)
		} else {
			w.consume(c, at, roots, starts)
		}
		restore()
	}
	w.settle(c, at)
	w.running = nil
	c.Release(begin)
}

// consume goes back through a unit's graph and lets go of the output, its gradients and the graph as it goes: for a unit of several layers that is the difference of what lies between the last two of them.
func (w *Walk) consume(c *torch.Ctx, at int, roots, starts []*torch.Tensor) {
	g, y := &w.graphs[at], &w.grads[at+1]
	prepared := c.PrepareBackward(roots, starts)
	defer prepared.Free()
	torch.FreeAll(g.out)
	torch.FreeAll(g.stashed)
	torch.FreeAll(y.xs)
	for _, s := range w.s.units[at].stashed {
		if s.out < len(y.skips) {
			torch.FreeAll(y.skips[s.out])
		}
	}
	for _, t := range starts { // sums of skips' gradients, too
		if c.Owns(t) {
			t.Free()
		}
	}
	if s := &w.states[at+1]; at+1 < len(w.s.units) && !w.stays(s.early) {
		s.free()
	}
	prepared.Run()
}

// settle gathers what backward left in the mailboxes and lets go of what it used.
func (w *Walk) settle(c *torch.Ctx, at int) {
	u, g, y := &w.s.units[at], &w.graphs[at], &w.grads[at+1]
	x := grads{xs: make([]*torch.Tensor, len(g.mail)), skips: make([][]*torch.Tensor, len(u.popped)+len(u.passed))}
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
		list := make([]*torch.Tensor, p.pops)
		for k, box := range g.skipMail[i] {
			list[k] = taken(c, box)
		}
		x.skips[p.in] = append(list, later(p.out)...)
	}
	for _, p := range u.passed {
		x.skips[p[0]] = later(p[1])
	}
	y.free()
	w.grads[at] = x
	for _, k := range u.ties {
		if w.s.ties[k].first == at {
			w.ties[k].Free()
			w.ties[k] = nil
		}
	}
	if s := &w.states[at+1]; at+1 < len(w.s.units) && !w.stays(s.early) {
		s.free()
	}
	if !w.stays(g.early) {
		g.free()
	}
	if s := &w.states[at]; w.alone(at) && !w.stays(s.early) {
		s.free()
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

// fold sums gradients as one backward through all of a skip's pops would: what was recorded last comes first.
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
