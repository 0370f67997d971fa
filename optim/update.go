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
	scratch *torch.Tensor // bytes for the temporaries of one parameter
}

// part is a parameter with a gradient.
type part struct {
	nn.NamedParam
	memory *memory // with all slots
	fresh  bool    // the optimizer does not have memory yet
}

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
	mark, done := c.Mark(), false
	defer func() {
		if c.Release(mark); !done {
			u.Drop()
		}
	}()
	c.NoGrad(func() {
		var updated []nn.NamedParam
		for _, p := range params {
			t, m := p.Tensor(), o.known(p.Name)
			if !t.HasGrad() {
				u.idle = append(u.idle, p.Name)
				continue
			}
			fresh := m.fresh()
			if fresh {
				m = &memory{slots: []*torch.Tensor{}}
			}
			u.parts, updated = append(u.parts, part{p, m, fresh}), append(updated, p)
			for len(m.slots) < len(o.rule.slots()) {
				m.slots = append(m.slots, c.Keep(c.Op("aten::zeros_like", t)))
			}
		}
		u.scratch = c.Keep(c.Empty(torch.Uint8, o.Need(updated).Scratch))
	})
	done = true
	return u
}

func (u *prepared) Apply() {
	u.c.NoGrad(func() {
		u.c.Unlimited(func() {
			for i := range u.parts {
				u.apply(&u.parts[i])
			}
		})
	})
	for _, name := range u.idle { // they are listed without updates
		if u.o.known(name) == nil {
			u.o.remember(name, &memory{})
		}
	}
}

// apply updates one parameter. The optimizer then owns its state.
func (u *prepared) apply(p *part) {
	mark := u.c.Mark()
	defer func() { u.c.Release(mark) }()
	t, m := p.Tensor(), p.memory
	rule, scale := u.o.ruleOf(p.Name)
	rule.update(u.c, t, u.c.GradOf(t), m.slots, m.steps+1, u.temporaries(t, rule.temporaries()), scale*u.o.lr)
	m.steps++
	u.o.remember(p.Name, m)
	p.fresh = false
}

// temporaries returns views of the scratch memory with a parameter's shape.
func (u *prepared) temporaries(p *torch.Tensor, count int) []*torch.Tensor {
	out := make([]*torch.Tensor, count)
	n := p.Numel() * p.DType().Size()
	for i := range out {
		bytes := u.c.Narrow(u.scratch, 0, int64(i)*n, n)
		out[i] = u.c.Reshape(u.c.Op("aten::view.dtype", bytes, p.DType()), p.Shape()...)
	}
	return out
}

func (u *prepared) Drop() {
	for _, p := range u.parts {
		if p.fresh {
			torch.FreeAll(p.memory.slots)
		}
	}
	u.scratch.Free()
	u.parts, u.idle, u.scratch = nil, nil, nil
}
