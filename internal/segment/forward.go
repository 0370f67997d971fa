package segment

import (
	"fmt"
	"slices"

	"penstock.example/internal/engine"
	"penstock.example/nn"
	"penstock.example/torch"
)

// forward runs a unit. With save it records the graph and keeps it.
func (e *Execution) forward(c *torch.Ctx, at int, save bool) {
	u, s := &e.s.units[at], &e.at[at].state
	begin := c.Mark()
	store := &e.store
	store.Begin(e.s.cfg.Routes, u.from, u.to)
	defer store.Free()
	c.SetGrad(save)
	n := e.context(c, Run{Graph: save, More: !save && !e.Final, Again: e.at[at].ran, Skips: store})
	e.running = n

	in := s.xs
	if !s.held {
		e.refuse(c, "unit %d has no input: it was dropped, or not yet made", at)
	}
	g := graph{made: save, beforeLoss: !e.lossDone, context: n}
	done := false
	defer func() {
		if !done {
			g.free()
		}
	}()
	e.giveSkips(c, store, at, &g)
	mark := c.Mark()
	xs := slices.Clone(in) // a layer may write into the slice
	if save {
		e.gate(c, at, xs, &g)
	}
	if e.Final && !s.lent { // so the input is freed after the first layer
		for _, x := range in {
			c.Adopt(x)
		}
		in, s.xs = nil, nil
	}
	guarded := in
	if e.s.cfg.Overwrite {
		guarded = nil
		store.Guard(s.skips)
	}
	store.Guard(guarded)
	check := e.watch(c, at, guarded)
	for _, l := range e.s.cfg.Layers[u.from:u.to] {
		xs = n.RunNamed(l, xs)
		c.Release(mark, xs...)
		check(l.Name)
	}
	e.running = nil
	e.storeOutput(n, store, at, xs, &g)
	done = true
	e.at[at].ran = true
	if save && e.s.cfg.Hold && len(e.s.units) == 1 && !(e.Retain && e.lossDone) {
		s.free() // no operation needs more than the graph keeps
	}
	c.Release(begin)
}

// wants reports whether the gradient of element i of a unit's input is wanted. wanted has the
// sender's answers, or is nil. needed says that a layer before needs the gradient.
func (e *Execution) wants(wanted []bool, at, i int, x *torch.Tensor, needed bool) bool {
	if wanted != nil {
		return wanted[i]
	}
	return (at > 0 || e.s.cfg.InputGrad) && needed && x.DType().IsFloat()
}

// gate passes xs, a unit's input, through gates, which put wanted gradients into mailboxes. Equal
// elements of the tuple stay equal.
func (e *Execution) gate(c *torch.Ctx, at int, xs []*torch.Tensor, g *graph) {
	s := &e.at[at].state
	g.mail = make([]*torch.Tensor, len(xs))
	for i, x := range s.xs {
		if k := slices.Index(s.xs[:i], x); k >= 0 {
			xs[i] = xs[k]
		} else if e.wants(s.wants, at, i, x, e.s.units[at].wantsGrad) {
			// the model's own input gets the same gradient as without a cut
			if at == 0 && e.s.cfg.First == 0 {
				g.mail[i] = engine.Mailbox(c)
				xs[i] = engine.Gate(c, g.mail[i], x)
			} else {
				g.mail[i], xs[i] = engine.Mailed(c, x)
			}
			c.Keep(g.mail[i])
		}
	}
}

// giveSkips gives the unit's layers the skips that they pop. Each pop has its own handle, behind a
// gate if the gradient of the skip is wanted.
func (e *Execution) giveSkips(c *torch.Ctx, store *nn.SkipStore, at int, g *graph) {
	s := &e.at[at].state
	for i, p := range e.s.units[at].entering {
		list, x := make([]*torch.Tensor, p.times), s.skips[i]
		var mail []*torch.Tensor
		if g.made {
			if x != nil && e.wants(s.wantsSkips, at, i, x, p.wantsGrad) {
				mail = make([]*torch.Tensor, p.times)
			}
			g.skipMail = append(g.skipMail, mail)
		}
		for k := range list {
			switch {
			case x == nil:
			case mail != nil:
				mail[k], list[k] = engine.Mailed(c, x)
				c.Keep(mail[k])
			default:
				list[k] = c.Share(x)
			}
			c.Keep(list[k])
		}
		store.Give(p.key, list...)
		if e.Final && p.out < 0 { // so the skip is freed with its last pop
			x.Free()
			s.skips[i] = nil
		}
	}
}

// watch returns a check, to be called after each layer of a unit. The check panics if the layer has
// overwritten a tensor of in or a skip that enters the unit.
func (e *Execution) watch(c *torch.Ctx, at int, in []*torch.Tensor) (check func(layer string)) {
	u, list := &e.s.units[at], slices.Concat(in, e.at[at].state.skips)
	overwritten := engine.Watch(list)
	return func(layer string) {
		i, what := overwritten(), "the stage's input"
		switch {
		case i < 0:
			return
		case i >= len(in):
			what = fmt.Sprintf("the skip %v", u.entering[i-len(in)].key)
		case at > 0:
			what = fmt.Sprintf("the output of %q", e.s.cfg.Layers[u.from-1].Name)
		}
		panic(&torch.Error{Op: "Forward", Args: []string{list[i].String()}, Device: c.Device(),
			Message: fmt.Sprintf("the layer %q overwrote %s, which is still to be used; let it declare "+
				"nn.InPlace, or work on a Clone", layer, what)})
	}
}

// storeOutput keeps the output of a unit as the input of the next one. With a graph the output is
// also the root of the backward.
func (e *Execution) storeOutput(n *nn.Ctx, store *nn.SkipStore, at int, xs []*torch.Tensor, g *graph) {
	u, last := &e.s.units[at], at == len(e.s.units)-1
	skips := make([]*torch.Tensor, len(e.s.boundaries[at+1]))
	done := false
	defer func() {
		if !done {
			torch.FreeAll(skips)
		}
	}()
	for i, x := range e.at[at].state.skips {
		if p := u.entering[i]; p.out >= 0 && x != nil {
			skips[p.out] = n.Keep(n.Share(x))
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
	next := &e.at[at+1].state
	if g.made && e.at[at].graph.made || next.held && !e.Retain {
		e.refuse(n.Ctx, "unit %d computes an output that still exists", at)
	}
	if done = true; g.made {
		g.out = keep(n.Ctx, xs)
		e.at[at].graph = *g
		if last && e.lossDone && e.s.cfg.Last < len(e.s.cfg.Layers) { // the output was sent already
			for k := range g.out {
				e.Release(n.Ctx, at, k)
			}
		}
	}
	switch {
	case last && e.lossDone, next.held: // the output was sent already, or is held
		torch.FreeAll(skips)
	case !g.made:
		*next = state{held: true, beforeLoss: !e.lossDone, xs: keep(n.Ctx, xs), skips: skips}
	case last:
		*next = state{beforeLoss: !e.lossDone, skips: skips}
	default:
		detached := engine.Mapped(g.out, func(t *torch.Tensor) *torch.Tensor { return n.Keep(n.Detach(t)) })
		*next = state{held: true, beforeLoss: !e.lossDone, xs: detached, skips: skips}
	}
}

// keep moves tensors out of the context. A tensor that the context does not own, such as a layer's
// input or a parameter, is shared. So every list can be freed by itself.
func keep(c *torch.Ctx, list []*torch.Tensor) []*torch.Tensor {
	return engine.Mapped(list, func(t *torch.Tensor) *torch.Tensor {
		if !c.Owns(t) {
			t = c.Share(t)
		}
		return c.Keep(t)
	})
}
