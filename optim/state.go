package optim

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"penstock.example/nn"
	"penstock.example/safetensors"
	"penstock.example/torch"
)

type rule interface {
	// slots names the tensors kept for each parameter. They have the parameter's shape and start at zero.
	slots() []string
	// temporaries returns the number of temporary tensors of the parameter's shape in an update.
	temporaries() int
	// update changes p and its slots by the gradient g, and leaves g unchanged. step counts the
	// parameter's updates from 1. scratch has the temporaries. It makes no graph and no other tensors.
	update(c *torch.Ctx, p, g *torch.Tensor, slots []*torch.Tensor, step int64, scratch []*torch.Tensor,
		lr float64)
}

// addOut computes out = a + alpha b.
func addOut(c *torch.Ctx, out, a, b *torch.Tensor, alpha float64) *torch.Tensor {
	return c.Op("aten::add.out", a, b, alpha, out)
}

// paramState is the state of one parameter. Only the goroutine that steps the parameter uses it.
type paramState struct {
	steps int64           // updates
	slots []*torch.Tensor // in the order of rule.slots; nil before the first update
}

// fresh reports whether a parameter was never updated.
func (m *paramState) fresh() bool { return m == nil || m.slots == nil }

func free(state map[string]*paramState) {
	for _, m := range state {
		torch.FreeAll(m.slots)
	}
}

type optimizer struct {
	rule   rule
	groups []groupRule
	lr     float64

	mu    sync.Mutex             // guards the map during steps, but not inside a *paramState
	state map[string]*paramState // by the parameter's full name; nil once closed
}

func newOptimizer(o Config, lr float64, make func(Config) rule) *optimizer {
	out := &optimizer{rule: make(o), lr: lr, state: map[string]*paramState{}}
	for _, g := range o.Groups {
		own := o
		if g.WeightDecay != nil {
			own.WeightDecay = *g.WeightDecay
		}
		out.groups = append(out.groups, groupRule{g.Params, cmp.Or(g.Scale, 1), make(own)})
	}
	return out
}

func (o *optimizer) Step(c *torch.Ctx, params []nn.NamedParam) {
	u := o.Prepare(c, params)
	defer u.Drop()
	u.Apply()
}

// known returns a parameter's state, or nil.
func (o *optimizer) known(name string) *paramState {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.state == nil {
		panic("optim: Step after Close")
	}
	return o.state[name]
}

func (o *optimizer) remember(name string, m *paramState) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.state[name] = m
}

func (o *optimizer) SetLR(lr float64) {
	if !isAmount(lr) {
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

// Update is an update whose memory Optimizer.Prepare has allocated. It belongs to the goroutine of
// Prepare's context. Until Drop the context must stay open, and nothing else may update the parameters or
// free their gradients.
type Update interface {
	// Apply updates the parameters that had a gradient in Prepare, with their current gradients and the
	// current rate. It is called at most once, and needs no more memory. If an operator fails, the
	// parameters before are updated and counted, and those after are unchanged. The parameter that
	// failed is not counted and may be half updated.
	Apply()
	// Drop frees the temporaries, and new state that was not applied. It is idempotent.
	Drop()
}

// Need is the bytes that an update allocates: State stays, Scratch is freed after the update.
type Need struct{ State, Scratch int64 }

type prepared struct {
	o       *optimizer
	c       *torch.Ctx
	updates []paramUpdate
	idle    []string      // parameters without a gradient, which Steps lists as well
	scratch *torch.Tensor // bytes for the temporaries of one parameter
}

// paramUpdate is the update of a parameter with a gradient.
type paramUpdate struct {
	nn.NamedParam
	state *paramState // with all slots
	fresh bool        // the optimizer does not have this state yet
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
				m = &paramState{slots: []*torch.Tensor{}}
			}
			u.updates, updated = append(u.updates, paramUpdate{p, m, fresh}), append(updated, p)
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
			for i := range u.updates {
				u.apply(&u.updates[i])
			}
		})
	})
	for _, name := range u.idle {
		if u.o.known(name) == nil {
			u.o.remember(name, &paramState{})
		}
	}
}

// apply updates one parameter. The optimizer then owns its state.
func (u *prepared) apply(p *paramUpdate) {
	mark := u.c.Mark()
	defer func() { u.c.Release(mark) }()
	t, m := p.Tensor(), p.state
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
	for _, p := range u.updates {
		if p.fresh {
			torch.FreeAll(p.state.slots)
		}
	}
	u.scratch.Free()
	u.updates, u.idle, u.scratch = nil, nil, nil
}

func (o *optimizer) Load(tensors []safetensors.Tensor, steps map[string]int64,
	places []Placement) (err error) {
	if o.state == nil {
		return errors.New("optim: load after Close")
	}
	loaded, saved, counts := map[string]*paramState{}, map[string]safetensors.Tensor{}, maps.Clone(steps)
	defer func() {
		if err != nil {
			free(loaded)
			err = fmt.Errorf("optim: load: %w", err)
		}
	}()
	for _, t := range tensors {
		if _, twice := saved[t.Name]; twice {
			return fmt.Errorf("%q is there twice", t.Name)
		}
		saved[t.Name] = t
	}
	for _, place := range places {
		if len(saved)+len(steps) == 0 {
			break
		}
		if err := o.read(loaded, saved, counts, place); err != nil {
			return err
		}
	}
	if len(counts)+len(saved) > 0 {
		return fmt.Errorf("state of no parameter of the model under this optimizer: steps %q, tensors %q",
			slices.Sorted(maps.Keys(counts)), slices.Sorted(maps.Keys(saved)))
	}
	free(o.state)
	o.state = loaded
	return nil
}

// read loads the state of a place's parameters into loaded, and deletes what it read from saved and
// counts.
func (o *optimizer) read(loaded map[string]*paramState, saved map[string]safetensors.Tensor,
	counts map[string]int64, place Placement) error {
	c := torch.NewCtx(torch.Options{Device: place.Device})
	defer c.Close()
	for _, p := range place.Params {
		n, ok := counts[p.Name]
		if !ok || n < 0 {
			return fmt.Errorf("no count of steps for parameter %q, or it is placed twice", p.Name)
		}
		delete(counts, p.Name)
		m := &paramState{steps: n}
		loaded[p.Name] = m
		if n == 0 {
			continue // no tensors before the first update
		}
		m.slots = []*torch.Tensor{}
		for _, slot := range o.rule.slots() {
			name := stateName(slot, p.Name)
			t, ok := saved[name]
			if !ok {
				return fmt.Errorf("no tensor %q", name)
			}
			if dtype := torch.FileDType(p.DType()); t.DType != dtype || !slices.Equal(t.Shape, p.Shape()) {
				return fmt.Errorf("%q is %v%v, the parameter is %v%v", name, t.DType, t.Shape, dtype,
					p.Shape())
			}
			delete(saved, name)
			if err := t.Load(func(b []byte) error {
				return torch.Try(func() {
					m.slots = append(m.slots, c.Keep(torch.FromBytes(c, b, p.DType(), p.Shape())))
				})
			}); err != nil {
				return fmt.Errorf("%q: %w", name, err)
			}
		}
	}
	return nil
}
