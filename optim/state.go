package optim

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"penstock/nn"
	"penstock/torch"
)

// rule is an update rule: all that tells one optimizer from another.
type rule interface {
	// slots names the tensors that the rule keeps for each parameter, each of the parameter's shape and zero at first.
	slots() []string
	// update changes p by its gradient g, which stays as it is, and what is remembered of p. It runs without recording; whoever calls it releases what it makes.
	update(c *torch.Ctx, p, g *torch.Tensor, m *memory, lr float64)
}

// memory is what is remembered of one parameter. It belongs to whoever steps that parameter.
type memory struct {
	steps int64           // updates so far, with the one that is running
	slots []*torch.Tensor // in the order of rule.slots; nil before the first update
}

func (m *memory) free() {
	for _, t := range m.slots {
		t.Free()
	}
}

// optimizer is a rule and its memory. It implements Optimizer.
type optimizer struct {
	rule rule

	mu sync.Mutex // guards what follows, but not inside a *memory
	lr float64
	of map[string]*memory // by the parameter's full name; nil once closed
}

func newOptimizer(r rule, lr float64) *optimizer {
	return &optimizer{rule: r, lr: lr, of: map[string]*memory{}}
}

func (o *optimizer) Step(c *torch.Ctx, params []nn.NamedParam) {
	lr := o.LR()
	c.NoGrad(func() {
		for _, p := range params {
			m := o.memory(p.Name)
			mark := c.Mark()
			if g := c.GradOf(p.Tensor()); g != nil {
				o.allocate(c, p.Tensor(), m)
				m.steps++
				o.rule.update(c, p.Tensor(), g, m, lr)
			}
			c.Release(mark)
		}
	})
}

func (o *optimizer) memory(name string) *memory {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.of == nil {
		panic("optim: Step after Close")
	}
	m := o.of[name]
	if m == nil {
		m = &memory{}
		o.of[name] = m
	}
	return m
}

// allocate makes all slots or, if it panics, none.
func (o *optimizer) allocate(c *torch.Ctx, p *torch.Tensor, m *memory) {
	if m.slots != nil {
		return
	}
	made := make([]*torch.Tensor, len(o.rule.slots()))
	for i := range made {
		made[i] = c.ZerosLike(p)
	}
	for _, t := range made {
		c.Keep(t)
	}
	m.slots = made
}

func (o *optimizer) SetLR(lr float64) {
	if !isSize(lr) {
		panic(fmt.Sprintf("optim: a learning rate of %v", lr))
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lr = lr
}

func (o *optimizer) LR() float64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lr
}

func (o *optimizer) State() []StateTensor {
	o.mu.Lock()
	defer o.mu.Unlock()
	var out []StateTensor
	for name, m := range o.of {
		for i, t := range m.slots {
			out = append(out, StateTensor{stateName(o.rule.slots()[i], name), t})
		}
	}
	slices.SortFunc(out, func(a, b StateTensor) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func stateName(slot, param string) string { return slot + "." + param }

func (o *optimizer) Steps() map[string]int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := make(map[string]int64, len(o.of))
	for name, m := range o.of {
		out[name] = m.steps
	}
	return out
}

func (o *optimizer) Close() { o.replace(nil) }

// replace frees the memory and puts another in its place; nil closes the optimizer.
func (o *optimizer) replace(of map[string]*memory) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, m := range o.of {
		m.free()
	}
	o.of = of
}
