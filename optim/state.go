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
	// update changes p and its state m by the gradient g, which it keeps. scratch has the temporaries.
	// It runs without recording and makes no other tensors.
	update(c *torch.Ctx, p, g *torch.Tensor, m *memory, scratch []*torch.Tensor, lr float64)
}

// addOut computes out = a + alpha b.
func addOut(c *torch.Ctx, out, a, b *torch.Tensor, alpha float64) *torch.Tensor {
	return c.Op("aten::add.out", a, b, alpha, out)
}

// memory is the state of one parameter. Only the goroutine that steps the parameter uses it.
type memory struct {
	steps int64           // updates, including a running one
	slots []*torch.Tensor // in the order of rule.slots; nil before the first update
}

func (m *memory) free() {
	for _, t := range m.slots {
		t.Free()
	}
}

// optimizer implements Optimizer with a rule.
type optimizer struct {
	rule   rule
	groups []groupRule

	mu    sync.Mutex // guards lr and the map, but not inside a *memory
	lr    float64
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

func (o *optimizer) closed() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.state == nil
}

// remember sets the state of a parameter. With nil the parameter is listed without updates.
func (o *optimizer) remember(name string, m *memory) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case m != nil:
		o.state[name] = m
	case o.state[name] == nil:
		o.state[name] = &memory{}
	}
}

// fresh reports whether a parameter was never updated.
func (m *memory) fresh() bool { return m == nil || m.slots == nil }

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
	o.mu.Lock()
	defer o.mu.Unlock()
	out := make(map[string]int64, len(o.state))
	for name, m := range o.state {
		out[name] = m.steps
	}
	return out
}

func (o *optimizer) Close() { o.replace(nil) }

// replace frees the state and sets another. Nil closes the optimizer.
func (o *optimizer) replace(state map[string]*memory) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, m := range o.state {
		m.free()
	}
	o.state = state
}
