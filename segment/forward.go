package segment

import (
	"fmt"
	"slices"

	"penstock/nn"
	"penstock/torch"
)

// forward runs a unit; with save it records the graph and keeps it.
func (w *Walk) forward(c *torch.Ctx, at int, save bool) {
	u, s := &w.s.units[at], &w.states[at]
	begin := c.Mark()
	store := nn.NewSkipStore(w.s.routes, u.from, u.to)
	defer store.Free()
	c.SetGrad(save)
	n := w.context(c, Run{Graph: save, More: !save && !w.Final, Again: w.ran[at], Skips: store})
	w.running = n

	in := s.xs
	if !s.held {
		panic(&torch.Error{Op: "plan", Device: c.Device(), Message: fmt.Sprintf("unit %d is run and has no input: it was dropped, or not yet made", at)})
	}
	g := graph{made: save, early: !w.behind, ran: n}
	done := false
	defer func() {
		if !done {
			g.free()
		}
	}()
	if save {
		w.mailboxes(c, at, in, &g)
	}
	w.giveSkips(c, store, at, &g)
	mark := c.Mark()
	xs := gated(c, in, g.mail)
	if w.Final && !s.lent { // it goes when the first layer has used it
		for _, x := range in {
			c.Adopt(x)
		}
		in, s.xs = nil, nil
	}
	guarded := in
	if w.s.overwrite {
		guarded = nil
		store.Guard(s.skips)
	}
	store.Guard(guarded)
	unchanged := w.watch(c, at, guarded)
	for _, l := range w.s.layers[u.from:u.to] {
		xs = n.RunNamed(l, xs)
		c.Release(mark, xs...)
		unchanged(l.Name)
	}
	w.running = nil
	w.leave(n, store, at, xs, &g)
	done = true
	w.ran[at] = true
	if save && len(w.s.units) == 1 && !(w.Retain && w.behind) {
		s.free() // the graph keeps what it needs, and nothing can need the rest
	}
	c.Release(begin)
}

// mailboxes makes those of a unit's input. The graph of the unit before, which knows whether it wants a gradient, may still have to be made: it is assumed to, if anything there is trained. What it does
// not want after all goes no further.
func (w *Walk) mailboxes(c *torch.Ctx, at int, in []*torch.Tensor, g *graph) {
	s, u := &w.states[at], &w.s.units[at]
	g.mail = make([]*torch.Tensor, len(in))
	for i, x := range in {
		if w.wants(s.wants, at, i, x) {
			g.mail[i] = c.Keep(c.Mailbox())
		}
	}
	for _, p := range u.popped {
		var list []*torch.Tensor
		if x := s.skips[p.in]; x != nil && w.wants(s.wantsSkips, at, p.in, x) {
			for range p.pops {
				list = append(list, c.Keep(c.Mailbox()))
			}
		}
		g.skipMail = append(g.skipMail, list)
	}
}

func (w *Walk) wants(told []bool, at, i int, x *torch.Tensor) bool {
	switch {
	case told != nil:
		return told[i]
	case at == 0:
		return false
	}
	return w.s.units[at].trained && x.DType().IsFloat()
}

// gated lets gradients of the inputs arrive in their mailboxes. A tensor that comes twice comes as one.
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

// giveSkips hands the unit's layers the skips that they pop, each pop its own handle.
func (w *Walk) giveSkips(c *torch.Ctx, store *nn.SkipStore, at int, g *graph) {
	s := &w.states[at]
	for i, p := range w.s.units[at].popped {
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
		if w.Final && p.out < 0 { // it goes with its last pop
			x.Free()
			s.skips[p.in] = nil
		}
	}
}

// watch returns a function, to be called after each layer with its name, that panics if the layer has overwritten what the unit was given and is still to be used.
func (w *Walk) watch(c *torch.Ctx, at int, in []*torch.Tensor) func(layer string) {
	s, u := &w.states[at], &w.s.units[at]
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
				what = fmt.Sprintf("the output of %q", w.s.layers[u.from-1].Name)
			}
			panic(&torch.Error{Op: "Forward", Args: []string{x.String()}, Device: c.Device(),
				Message: fmt.Sprintf("the layer %q overwrote %s, which is still to be used; %s", layer, what, remedy)})
		}
	}
}

// leave keeps what a unit gave: with a graph as what backward starts from, and in any case as the input of what comes behind.
func (w *Walk) leave(n *nn.Ctx, store *nn.SkipStore, at int, xs []*torch.Tensor, g *graph) {
	u, last := &w.s.units[at], at == len(w.s.units)-1
	skips := make([]*torch.Tensor, len(w.s.borders[at+1]))
	from := w.states[at].skips
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
	next := &w.states[at+1]
	if g.made && w.graphs[at].made || next.held && !w.Retain {
		torch.FreeAll(skips)
		panic(&torch.Error{Op: "plan", Device: n.Device(), Message: fmt.Sprintf("unit %d computes what is still there", at)})
	}
	if g.made {
		g.out = keep(n.Ctx, xs)
		w.graphs[at] = *g
	}
	switch {
	case last && w.behind, next.held: // who was sent it has it, or has still to take it; or it is the same as at first
		torch.FreeAll(skips)
	case !g.made:
		*next = state{held: true, early: !w.behind, xs: keep(n.Ctx, xs), skips: skips}
	case last:
		*next = state{early: !w.behind, skips: skips}
	default:
		*next = state{held: true, early: !w.behind, xs: detached(n.Ctx, g.out), skips: skips}
	}
}

func shared(c *torch.Ctx, t *torch.Tensor) *torch.Tensor {
	if t == nil {
		return nil
	}
	return c.Share(t)
}

// detached are the same tensors without their graph, kept. One that stands there twice is one.
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

// keep moves tensors out of the context. One that is not the context's, because a layer gave back what it was given or a parameter, is shared, so that every list is freed by itself.
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
