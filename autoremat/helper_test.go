package autoremat_test

import (
	"errors"
	"fmt"
	"runtime"
	"slices"

	"penstock.example/autoremat"
	"penstock.example/internal/must"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/plan"
	"penstock.example/torch"
)

// test is what testing.T and rapid.T have in common.
type test interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
	Errorf(string, ...any)
}

// layer makes a layer of a function.
type lambda struct {
	nn.Base
	f func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor
}

func layer(f func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor) *lambda { return &lambda{f: f} }

func (l *lambda) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return l.f(c, x) }

// tupled makes a layer of tuples of a function.
type tupled struct {
	nn.Base
	f func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor
}

func (l *tupled) ForwardTuple(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor { return l.f(c, xs) }

func tuples(f func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor) nn.Layer {
	l := &tupled{f: f}
	return nn.Tuple(l, l.ForwardTuple)
}

// device is one that no other test of the package leaves anything on.
var device = torch.CPU(5)

// problem is a model with its data.
type problem struct {
	name   string
	model  func() *nn.Sequential
	input  []int64 // shape
	tokens int64   // the input is integers below this; 0 is normal numbers
	target func(c *torch.Ctx, step int) *torch.Tensor
	loss   nn.Loss

	inputGrad bool
	optimizer func() optim.Optimizer // nil is plain descent without one
	retain    bool                   // go back twice
	batches   int                    // whose gradients are added up before an update; 0 is 1
}

func (q problem) x(c *torch.Ctx, step int) *torch.Tensor {
	c.SetSeed(uint64(step) + 100)
	if q.tokens == 0 {
		return c.Normal_(c.Empty(torch.Float32, q.input...), 0, 1)
	}
	n := int64(1)
	for _, s := range q.input {
		n *= s
	}
	out := make([]int64, n)
	for i := range out {
		out[i] = int64(torch.Mix(uint64(step), uint64(i)) % uint64(q.tokens))
	}
	return torch.From(c, out, q.input...)
}

func classes(rows, n int64) func(*torch.Ctx, int) *torch.Tensor {
	return func(c *torch.Ctx, step int) *torch.Tensor {
		out := make([]int64, rows)
		for i := range out {
			out[i] = int64(torch.Mix(uint64(step), uint64(i)) % uint64(n))
		}
		return torch.From(c, out)
	}
}

// record is what a training run leaves: losses, outputs, gradients of the input, parameters, their
// gradients, buffers.
type record struct {
	names  []string
	values map[string]string
}

func (r *record) put(name string, t *torch.Tensor) {
	if r.values == nil {
		r.values = map[string]string{}
	}
	r.names = append(r.names, name)
	if t != nil {
		r.values[name] = t.String() + string(torch.Bytes(t))
	}
}

func (r *record) differs(other *record) string {
	if !slices.Equal(r.names, other.names) {
		return "names"
	}
	for _, n := range r.names {
		if r.values[n] != other.values[n] {
			return n
		}
	}
	return ""
}

// wrapped is what trains: the model, and perhaps a module of it.
type wrapped struct {
	layer nn.Layer
	m     *autoremat.Module // nil for the model alone
}

// with makes the model on its device, wraps it, and calls f with what trains. Nothing of it is left then.
func (q problem) with(wrap func(c *torch.Ctx, m *nn.Sequential) wrapped, f func(c *torch.Ctx, w wrapped)) {
	// autograd orders what is used several times by numbers that it counts on each thread
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c := torch.NewCtx(torch.Options{Device: device, Threads: 1})
	defer c.Close()
	model := q.model()
	defer nn.Free(model)
	nn.Materialise(c, nn.State(model), 3)
	w := wrap(c, model)
	if w.m != nil {
		defer w.m.Close()
	}
	f(c, w)
}

// run trains for some steps and records everything. before is told of each step when its batch is
// there, after when the update is over.
func (q problem) run(t test, steps int, wrap func(c *torch.Ctx, m *nn.Sequential) wrapped, before,
	after func(step int, w wrapped)) (r *record) {
	t.Helper()
	q.with(wrap, func(c *torch.Ctx, w wrapped) {
		var o optim.Optimizer
		if q.optimizer != nil {
			o = q.optimizer()
			defer o.Close()
		}
		r = q.train(t, c, w, o, steps, before, after)
	})
	return r
}

func (q problem) train(t test, c *torch.Ctx, w wrapped, o optim.Optimizer, steps int, before,
	after func(step int, w wrapped)) *record {
	t.Helper()
	r := &record{}
	for step := range steps {
		c.SetGrad(false)
		x, y := q.x(c, step), q.target(c, step)
		if q.inputGrad {
			x.SetRequiresGrad(true)
		}
		if before != nil {
			before(step, w)
		}
		mark := c.Mark()
		for batch := range max(q.batches, 1) {
			c.SetGrad(true)
			n := nn.NewCtx(c, nn.Config{Training: true, Seed: torch.Mix(5, uint64(step+100*batch))})
			out := w.layer.Forward(n, x)
			loss := nn.RunLoss(n, q.loss, []*torch.Tensor{out}, []*torch.Tensor{y})
			c.SetGrad(false)
			if q.retain {
				c.Backward([]*torch.Tensor{loss}, []*torch.Tensor{nil}, true)
			}
			c.Backward([]*torch.Tensor{loss}, []*torch.Tensor{nil}, false)
			r.put(fmt.Sprintf("output %d.%d", step, batch), out)
			r.put(fmt.Sprintf("loss %d.%d", step, batch), loss)
		}
		if q.inputGrad {
			r.put(fmt.Sprintf("gradient of the input %d", step), c.GradOf(x))
		}
		var model nn.Module = w.layer
		for _, p := range nn.State(model) {
			if p.Trainable() {
				m := c.Mark()
				r.put(fmt.Sprintf("gradient of %s %d", p.Name, step), c.GradOf(p.Tensor()))
				c.Release(m)
			}
		}
		if o != nil {
			o.Step(c, nn.Params(model))
		} else {
			descend(c, nn.Params(model))
		}
		if after != nil {
			after(step, w)
		}
		c.Release(mark)
		nn.ZeroGrads(model)
		c.Close()
	}
	var model nn.Module = w.layer
	for _, p := range nn.State(model) {
		r.put(p.Name, p.Tensor())
	}
	return r
}

// descend is plain gradient descent, in place.
func descend(c *torch.Ctx, params []nn.NamedParam) {
	c.NoGrad(func() {
		for _, p := range params {
			mark := c.Mark()
			if g := c.GradOf(p.Tensor()); g != nil {
				c.Add_(p.Tensor(), g, -0.05)
			}
			c.Release(mark)
		}
	})
}

// plain is the model alone.
func plain(_ *torch.Ctx, m *nn.Sequential) wrapped { return wrapped{layer: m} }

// under wraps in a module with a limit.
func under(t test, limit int64, o optim.Optimizer) func(c *torch.Ctx, m *nn.Sequential) wrapped {
	return func(_ *torch.Ctx, model *nn.Sequential) wrapped {
		m := must.Get(autoremat.New(model, autoremat.Config{Limit: limit, Optimizer: o}))(t)
		return wrapped{m, m}
	}
}

// least is the lowest limit under which the problem is trained, by the error of one that is too low.
func (q problem) least(t test) int64 {
	t.Helper()
	e := q.refused(t, 1)
	if e == nil {
		t.Fatal("a limit of one byte is enough")
	}
	return e.Least()
}

// refused is the error of training under a limit, or nil.
func (q problem) refused(t test, limit int64) (e *plan.MemoryError) {
	t.Helper()
	var o optim.Optimizer
	if q.optimizer != nil {
		o = q.optimizer()
		defer o.Close()
	}
	err := torch.Try(func() {
		q.with(under(t, limit, o), func(c *torch.Ctx, w wrapped) { q.train(t, c, w, nil, 1, nil, nil) })
	})
	if err != nil && (!errors.As(err, &e) || !errors.Is(err, torch.ErrOutOfMemory)) {
		t.Fatal(err)
	}
	return e
}

func optimizer(o optim.Optimizer, err error) optim.Optimizer {
	if err != nil {
		panic(err)
	}
	return o
}

func adam() optim.Optimizer { return optimizer(optim.Adam(optim.Config{LR: 0.01})) }

// sgd keeps nothing and needs nothing.
func sgd() optim.Optimizer { return optimizer(optim.SGD(optim.Config{LR: 0.01})) }
