package optim

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"penstock.example/nn"
	"penstock.example/torch"
)

// rule is an update rule: all that tells one optimizer from another.
type rule interface {
	// slots names the tensors that the rule keeps for each parameter, each of the parameter's shape
	// and zero at first.
	slots() []string
	// temporaries is the number of further tensors of the parameter's shape that an update needs.
	temporaries() int
	// update changes p by its gradient g, which stays as it is, what is remembered of p, and
	// scratch, the temporaries. It runs without recording and makes no other tensors.
	update(c *torch.Ctx, p, g *torch.Tensor, m *memory, scratch []*torch.Tensor, lr float64)
}

// addOut is out = a + alpha b.
func addOut(c *torch.Ctx, out, a, b *torch.Tensor, alpha float64) *torch.Tensor {
	return c.Op("aten::add.out", a, b, alpha, out)
}

// memory is the state kept for one parameter. It belongs to whoever steps that parameter.
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
	rule   rule
	groups []groupRule

	mu sync.Mutex // guards what follows, but not inside a *memory
	lr float64
	of map[string]*memory // by the parameter's full name; nil once closed
}

func newOptimizer(o Config, lr float64, make func(Config) rule) *optimizer {
	return &optimizer{rule: make(o), groups: grouped(o, make), lr: lr, of: map[string]*memory{}}
}

func (o *optimizer) Step(c *torch.Ctx, params []nn.NamedParam) {
	u := o.Prepare(c, params)
	defer u.Drop()
	u.Apply()
}

// known is the state kept for a parameter, or nil.
func (o *optimizer) known(name string) *memory {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.of == nil {
		panic("optim: Step after Close")
	}
	return o.of[name]
}

func (o *optimizer) closed() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.of == nil
}

// remember makes m the state of a parameter. Nil lists the parameter without state.
func (o *optimizer) remember(name string, m *memory) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case m != nil:
		o.of[name] = m
	case o.of[name] == nil:
		o.of[name] = &memory{}
	}
}

// fresh says that a parameter was never updated.
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
	for name, m := range o.of {
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
	out := make(map[string]int64, len(o.of))
	for name, m := range o.of {
		out[name] = m.steps
	}
	return out
}

func (o *optimizer) Close() { o.replace(nil) }

// replace frees the state and installs another. Nil closes the optimizer.
func (o *optimizer) replace(of map[string]*memory) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, m := range o.of {
		m.free()
	}
	o.of = of
}
