package segment

import (
	"fmt"
	"slices"

	"penstock.example/nn"
	"penstock.example/torch"
)

// forward runs a unit. With save it records the graph and keeps it.
func (e *Execution) forward(c *torch.Ctx, at int, save bool) {
	u, s := &e.s.units[at], &e.states[at]
	begin := c.Mark()
	store := nn.NewSkipStore(e.s.routes, u.from, u.to)
	defer store.Free()
	c.SetGrad(save)
	n := e.context(c, Run{Graph: save, More: !save && !e.Final, Again: e.ran[at], Skips: store})
	e.running = n

	in := s.xs
	if !s.held {
		panic(&torch.Error{Op: "plan", Device: c.Device(), Message: fmt.Sprintf("unit %d is run and has no input: it was dropped, or not yet made", at)})
	}
	g := graph{made: save, early: !e.after, ran: n}
	done := false
	defer func() {
		if !done {
			g.free()
		}
	}()
	if save {
		e.mailboxes(c, at, in, &g)
	}
	e.giveSkips(c, store, at, &g)
	mark := c.Mark()
	xs := gated(c, in, g.mail)
	if e.Final && !s.lent { // the input is freed when the first layer has used it
		for _, x := range in {
			c.Adopt(x)
		}
		in, s.xs = nil, nil
	}
	guarded := in
	if e.s.overwrite {
		guarded = nil
		store.Guard(s.skips)
	}
	store.Guard(guarded)
	unchanged := e.watch(c, at, guarded)
	for _, l := range e.s.layers[u.from:u.to] {
		xs = n.RunNamed(l, xs)
		c.Release(mark, xs...)
		unchanged(l.Name)
	}
	if at == len(e.s.units)-1 && e.s.last < len(e.s.layers) {
		xs = dense(c, xs)
		c.Release(mark, xs...)
	}
	e.running = nil
	e.leave(n, store, at, xs, &g)
	done = true
	e.ran[at] = true
	if save && e.s.hold && len(e.s.units) == 1 && !(e.Retain && e.after) {
		s.free() // the graph keeps what it needs, and no operation can need the rest
	}
	c.Release(begin)
}

// mailboxes makes the mailboxes of a unit's input. Whether a gradient is wanted is known for
// certain only when the graph of the unit before is made, which may come later: it is assumed if
// anything there is trained. A gradient that is not wanted after all goes no further.
func (e *Execution) mailboxes(c *torch.Ctx, at int, in []*torch.Tensor, g *graph) {
	s, u := &e.states[at], &e.s.units[at]
	g.mail = make([]*torch.Tensor, len(in))
	for i, x := range in {
		if e.wants(s.wants, at, i, x) {
			g.mail[i] = c.Keep(c.Mailbox())
		}
	}
	for _, p := range u.popped {
		var list []*torch.Tensor
		if x := s.skips[p.in]; x != nil && e.wants(s.wantsSkips, at, p.in, x) {
			for range p.pops {
				list = append(list, c.Keep(c.Mailbox()))
			}
		}
		g.skipMail = append(g.skipMail, list)
	}
}

// wants reports whether the gradient of element i of a unit's input is wanted. told is what the
// sender said, if anything.
func (e *Execution) wants(told []bool, at, i int, x *torch.Tensor) bool {
	switch {
	case told != nil:
		return told[i]
	case at == 0:
		return false
	}
	return e.s.units[at].trained && x.DType().IsFloat()
}

// gated hangs inputs on gates, which leave their gradients in the mailboxes. A tensor that stands
// there twice stays one.
func gated(c *torch.Ctx, in, mail []*torch.Tensor) []*torch.Tensor {
	xs := slices.Clone(in)
	for i, box := range mail {
		if k := slices.Index(in[:i], in[i]); k >= 0 {
			xs[i] = xs[k]
		} else if box != nil {
			xs[i] = c.Gate(box, in[i])
		}
	}
	return xs
}

// giveSkips gives the unit's layers the skips that they pop. Each pop has a handle of its own.
func (e *Execution) giveSkips(c *torch.Ctx, store *nn.SkipStore, at int, g *graph) {
	s := &e.states[at]
	for i, p := range e.s.units[at].popped {
		list := make([]*torch.Tensor, p.pops)
		x := s.skips[p.in]
		for k := range list {
			switch {
			case x == nil:
			case g.made && g.skipMail[i] != nil:
				list[k] = c.Keep(c.Gate(g.skipMail[i][k], x))
			default:
				list[k] = c.Keep(c.Share(x))
			}
		}
		store.Give(p.key, list...)
		if e.Final && p.out < 0 { // the skip is freed with its last pop
			x.Free()
			s.skips[p.in] = nil
		}
	}
}

// watch returns a function to call after each layer, with its name. It panics if the layer has
// overwritten something that is still to be used: an element of in, or a skip.
func (e *Execution) watch(c *torch.Ctx, at int, in []*torch.Tensor) func(layer string) {
	s, u := &e.states[at], &e.s.units[at]
	list := slices.Clone(in)
	for _, p := range u.popped {
		list = append(list, s.skips[p.in])
	}
	before := make([]int64, len(list))
	for i, x := range list {
		if x != nil {
			before[i] = x.Changes()
		}
	}
	return func(layer string) {
		for i, x := range list {
			if x == nil || x.Changes() == before[i] {
				continue
			}
			what, remedy := "the stage's input", "let it declare nn.InPlace, or work on a Clone"
			switch {
			case i >= len(in):
				what, remedy = fmt.Sprintf("the skip %v", u.popped[i-len(in)].key), "let it work on a Clone"
			case at > 0:
				what = fmt.Sprintf("the output of %q", e.s.layers[u.from-1].Name)
			}
			panic(&torch.Error{Op: "Forward", Args: []string{x.String()}, Device: c.Device(),
				Message: fmt.Sprintf("the layer %q overwrote %s, which is still to be used; %s", layer, what, remedy)})
		}
	}
}

// leave keeps the output of a unit: as the roots of a backward if there is a graph, and in any case
// as the input of the next unit.
func (e *Execution) leave(n *nn.Ctx, store *nn.SkipStore, at int, xs []*torch.Tensor, g *graph) {
	u, last := &e.s.units[at], at == len(e.s.units)-1
	skips := make([]*torch.Tensor, len(e.s.boundaries[at+1]))
	done := false
	defer func() {
		if !done {
			torch.FreeAll(skips)
		}
	}()
	from := e.states[at].skips
	for _, p := range u.passed {
		skips[p[1]] = n.Keep(shared(n.Ctx, from[p[0]]))
	}
	for _, p := range u.popped {
		if p.out >= 0 {
			skips[p.out] = n.Keep(shared(n.Ctx, from[p.in]))
		}
	}
	for _, s := range u.stashed {
		t := store.Take(n, s.key)
		if e.s.Leaves(s.key) >= 0 {
			t = packed(n.Ctx, t)
		}
		if g.made {
			g.stashed = append(g.stashed, t)
			if t != nil && !last {
				t = n.Keep(n.Detach(t))
			}
		}
		if !g.made || !last {
			skips[s.out] = t
		}
	}
	next := &e.states[at+1]
	if g.made && e.graphs[at].made || next.held && !e.Retain {
		panic(&torch.Error{Op: "plan", Device: n.Device(), Message: fmt.Sprintf("unit %d computes what is still there", at)})
	}
	if done = true; g.made {
		g.out = keep(n.Ctx, xs)
		e.graphs[at] = *g
	}
	switch {
	case last && e.after, next.held: // the output was sent on before, or is the same as at first
		torch.FreeAll(skips)
	case !g.made:
		*next = state{held: true, early: !e.after, xs: keep(n.Ctx, xs), skips: skips}
	case last:
		*next = state{early: !e.after, skips: skips}
	default:
		*next = state{held: true, early: !e.after, xs: detached(n.Ctx, g.out), skips: skips}
	}
}

func shared(c *torch.Ctx, t *torch.Tensor) *torch.Tensor {
	if t == nil {
		return nil
	}
	return c.Share(t)
}

// detached returns the same tensors without their graph, kept. A tensor that stands there twice
// stays one.
func detached(c *torch.Ctx, list []*torch.Tensor) []*torch.Tensor {
	out := slices.Clone(list)
	for i, t := range list {
		if k := slices.Index(list[:i], t); k >= 0 {
			out[i] = out[k]
		} else {
			out[i] = c.Keep(c.Detach(t))
		}
	}
	return out
}

// keep moves tensors out of the context. A tensor that the context does not own, because a layer
// returned its input or a parameter, is shared, so that every list is freed by itself.
func keep(c *torch.Ctx, list []*torch.Tensor) []*torch.Tensor {
	out := slices.Clone(list)
	for i, t := range list {
		switch k := slices.Index(list[:i], t); {
		case k >= 0:
			out[i] = out[k]
		case !c.Owns(t):
			out[i] = c.Keep(c.Share(t))
		default:
			out[i] = c.Keep(t)
		}
	}
	return out
}
