package optim

import (
	"penstock.example/nn"
	"penstock.example/torch"
)

// Update is an update whose memory Optimizer.Prepare has allocated. It belongs to the goroutine of
// Prepare's context. Until Drop the context must stay open, and nothing else may update the parameters or
// free their gradients.
type Update interface {
	// Apply updates the parameters that had a gradient in Prepare, with their current gradients and the
	// current rate. It is called at most once, and needs no more memory. If an operator fails, earlier
	// parameters are updated and counted, later ones are unchanged. The parameter itself is not counted
	// and may be half updated.
	Apply()
	// Drop frees the temporaries, and new state that was not applied. It is idempotent.
	Drop()
}

// Need is the bytes that an update allocates: State stays, Scratch is freed after the update.
type Need struct{ State, Scratch int64 }

// prepared is an Update of an optimizer.
type prepared struct {
	o       *optimizer
	c       *torch.Ctx
	parts   []part
	idle    []string      // parameters without a gradient
	scratch *torch.Tensor // bytes for the temporaries of one parameter; may be nil
}

// part is a parameter with a gradient.
type part struct {
	nn.NamedParam
	known  *memory // the optimizer's; nil before the first update
	memory *memory // with all slots
}

func (p part) fresh() bool { return p.memory != p.known }

func (o *optimizer) Need(params []nn.NamedParam) (n Need) {
	slots := int64(len(o.rule.slots()))
	for _, p := range params {
		if o.known(p.Name).fresh() {
			n.State += slots * p.Bytes()
		}
		rule, _ := o.ruleOf(p.Name)
		n.Scratch = max(n.Scratch, int64(rule.temporaries())*p.Bytes())
	}
	return n
}

func (o *optimizer) Prepare(c *torch.Ctx, params []nn.NamedParam) Update {
	u := &prepared{o: o, c: c}
	done := false
	defer func() {
		if !done {
			u.Drop()
		}
	}()
	scratch := int64(0)
	mark := c.Mark()
	defer func() { c.Release(mark) }()
	c.NoGrad(func() {
		for _, p := range params {
			t, known := p.Tensor(), o.known(p.Name)
			if !t.HasGrad() {
				u.idle = append(u.idle, p.Name)
				continue
			}
			m := known
			if known.fresh() {
				m = &memory{slots: []*torch.Tensor{}}
			}
			u.parts = append(u.parts, part{p, known, m})
			for len(m.slots) < len(o.rule.slots()) {
				m.slots = append(m.slots, c.Keep(c.Op("aten::zeros_like", t)))
			}
			rule, _ := o.ruleOf(p.Name)
			scratch = max(scratch, int64(rule.temporaries())*p.Bytes())
		}
		if scratch > 0 {
			u.scratch = c.Keep(c.Empty(torch.Uint8, scratch))
		}
	})
	done = true
	return u
}

func (u *prepared) Apply() {
	lr := u.o.LR()
	u.c.NoGrad(func() {
		u.c.Unlimited(func() {
			for i := range u.parts {
				u.apply(&u.parts[i], lr)
			}
		})
	})
	for _, name := range u.idle {
		u.o.remember(name, nil)
	}
}

// apply updates one parameter. The optimizer then owns its state.
func (u *prepared) apply(p *part, lr float64) {
	mark := u.c.Mark()
	defer func() { u.c.Release(mark) }()
	t, done := p.Tensor(), false
	p.memory.steps++
	defer func() {
		if !done {
			p.memory.steps--
		}
	}()
	rule, scale := u.o.ruleOf(p.Name)
	rule.update(u.c, t, u.c.GradOf(t), p.memory, u.temporaries(t, rule.temporaries()), scale*lr)
	done = true
	u.o.remember(p.Name, p.memory)
	p.known = p.memory
}

// temporaries returns views of the scratch memory with a parameter's shape.
func (u *prepared) temporaries(p *torch.Tensor, count int) []*torch.Tensor {
	out := make([]*torch.Tensor, count)
	n := p.Numel() * p.DType().Size()
	for i := range out {
		if u.scratch == nil { // no parameter has elements
			out[i] = u.c.Op("aten::zeros_like", p)
			continue
		}
		bytes := u.c.Narrow(u.scratch, 0, int64(i)*n, n)
		out[i] = u.c.Reshape(u.c.Op("aten::view.dtype", bytes, p.DType()), p.Shape()...)
	}
	return out
}

func (u *prepared) Drop() {
	for _, p := range u.parts {
		if p.fresh() {
			p.memory.free()
		}
	}
	u.scratch.Free()
	u.parts, u.idle, u.scratch = nil, nil, nil
}
