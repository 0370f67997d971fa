package optim

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"penstock.example/nn"
	"penstock.example/torch"
)

// rule is an update rule.
type rule interface {
	// slots names the tensors kept for each parameter. They have the parameter's shape and start at zero.
	slots() []string
	// temporaries returns the number of temporary tensors of the parameter's shape in an update.
	temporaries() int
	// update changes p and its slots by the gradient g, which it keeps. step counts the parameter's updates
	// from 1. scratch has the temporaries. It runs without recording and makes no other tensors.
	update(c *torch.Ctx, p, g *torch.Tensor, slots []*torch.Tensor, step int64, scratch []*torch.Tensor,
		lr float64)
}

// addOut computes out = a + alpha b.
func addOut(c *torch.Ctx, out, a, b *torch.Tensor, alpha float64) *torch.Tensor {
	return c.Op("aten::add.out", a, b, alpha, out)
}

// memory is the state of one parameter. Only the goroutine that steps the parameter uses it.
type memory struct {
	steps int64           // updates
	slots []*torch.Tensor // in the order of rule.slots; nil before the first update
}

// fresh reports whether a parameter was never updated.
func (m *memory) fresh() bool { return m == nil || m.slots == nil }

func free(state map[string]*memory) {
	for _, m := range state {
		torch.FreeAll(m.slots)
	}
}

// optimizer implements Optimizer with a rule.
type optimizer struct {
	rule   rule
	groups []groupRule
	lr     float64

	mu    sync.Mutex         // guards the map during steps, but not inside a *memory
	state map[string]*memory // by the parameter's full name; nil once closed
}

func newOptimizer(o Config, lr float64, make func(Config) rule) *optimizer {
	return &optimizer{rule: make(o), groups: groupRules(o, make), lr: lr, state: map[string]*memory{}}
}

func (o *optimizer) Step(c *torch.Ctx, params []nn.NamedParam) {
	u := o.Prepare(c, params)
	defer u.Drop()
	u.Apply()
}

// known returns a parameter's state, or nil.
func (o *optimizer) known(name string) *memory {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.state == nil {
		panic("optim: Step after Close")
	}
	return o.state[name]
}

func (o *optimizer) remember(name string, m *memory) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.state[name] = m
}

func (o *optimizer) SetLR(lr float64) {
	if !isSize(lr) {
		panic(fmt.Sprintf("optim: a learning rate of %v", lr))
	}
	o.lr = lr
}

func (o *optimizer) LR() float64 { return o.lr }

func (o *optimizer) State() (out []StateTensor) {
	for name, m := range o.state {
		for i, t := range m.slots {
			out = append(out, StateTensor{stateName(o.rule.slots()[i], name), name, t})
		}
	}
	slices.SortFunc(out, func(a, b StateTensor) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func stateName(slot, param string) string { return slot + "." + param }

func (o *optimizer) Steps() map[string]int64 {
	out := make(map[string]int64, len(o.state))
	for name, m := range o.state {
		out[name] = m.steps
	}
	return out
}

func (o *optimizer) Close() {
	free(o.state)
	o.state = nil
}
