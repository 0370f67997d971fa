package autoremat_test

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"

	"penstock.example/autoremat"
	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/plan"
	"penstock.example/torch"
)

// trained returns what a few steps leave of a model whose parts build may wrap.
func trained(t *testing.T, seed uint64, build func(wrap func(*nn.Sequential) nn.Layer) *nn.Sequential, wrap func(*nn.Sequential) nn.Layer, x []int64) *record {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c := torch.NewCtx(torch.Options{Device: device, Threads: 1})
	defer c.Close()
	model := build(wrap)
	defer nn.Free(model)
	nn.Materialise(c, nn.State(model), 3)
	r := &record{}
	for step := range 3 {
		c.SetSeed(uint64(step))
		x := c.Normal_(c.Empty(torch.Float32, x...), 0, 1)
		c.SetGrad(true)
		n := nn.NewCtx(c, nn.Config{Training: true, Seed: seed + uint64(step)})
		ys := model.ForwardTuple(n, []*torch.Tensor{x})
		loss := c.Sum(c.Mul(ys[0], ys[0]))
		c.Backward([]*torch.Tensor{loss}, []*torch.Tensor{nil}, false)
		for _, y := range ys {
			r.put("output", y)
		}
		for _, p := range nn.Params(model) {
			r.put("gradient of "+p.Name, c.GradOf(p.Tensor()))
		}
		descend(c, nn.Params(model))
		nn.ZeroGrads(model)
		c.Close()
	}
	for _, p := range nn.State(model) {
		r.put(p.Name, p.Tensor())
	}
	return r
}

// TestModulesInModels: a module may be a layer of another model, stand under a checkpoint, and
// share parameters with other layers. Names, dropped elements and gradients stay those of the model
// without it.
func TestModulesInModels(t *testing.T) {
	part := func(dim int64) *nn.Sequential {
		return nn.NewSequential(nn.NewLinear(dim, dim), nn.NewDropout(0.3), nn.NewTanh(), nn.NewLinear(dim, dim), nn.NewBatchNorm1d(dim, nn.BatchNormConfig{}), nn.NewReLUInPlace())
	}
	for name, build := range map[string]func(wrap func(*nn.Sequential) nn.Layer) *nn.Sequential{
		"first, middle and last": func(wrap func(*nn.Sequential) nn.Layer) *nn.Sequential {
			return nn.NewSequential(wrap(part(8)), nn.NewTanh(), nn.NewSequential(nn.NewLinear(8, 8), wrap(part(8))), wrap(part(8)))
		},
		"under a checkpoint": func(wrap func(*nn.Sequential) nn.Layer) *nn.Sequential {
			return nn.NewSequential(nn.NewLinear(8, 8), nn.Checkpointed(nn.NewSequential(nn.NewTanh(), wrap(part(8)), nn.NewDropout(0.2))), nn.NewLinear(8, 2))
		},
		"with skips inside and around": func(wrap func(*nn.Sequential) nn.Layer) *nn.Sequential {
			inside := &network{Sequential: nn.NewSequential()}
			inside.push(true)
			inside.add(nn.NewLinear(8, 8))
			inside.add(nn.NewDropout(0.2))
			inside.pop()
			around := &network{Sequential: nn.NewSequential(), stash: 10}
			around.push(false)
			around.add(wrap(inside.Sequential))
			around.pop()
			return around.Sequential
		},
		"sharing with layers outside": func(wrap func(*nn.Sequential) nn.Layer) *nn.Sequential {
			first := nn.NewLinearNoBias(8, 8)
			tie := func() nn.Layer {
				l := &lambda{}
				p := l.Share("weight", first.Weight)
				l.f = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.PlainLinear(x, p.Tensor(), nil) }
				return l
			}
			return nn.NewSequential(first, nn.NewTanh(), wrap(nn.NewSequential(nn.NewLinear(8, 8), tie(), nn.NewTanh())), nn.NewTanh(), tie())
		},
		"tuples at the end": func(wrap func(*nn.Sequential) nn.Layer) *nn.Sequential {
			return nn.NewSequential(wrap(nn.NewSequential(nn.NewLinear(8, 8), nn.NewTanh(), tuples(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
				y := c.Tanh(xs[0])
				return []*torch.Tensor{y, c.Argmax(xs[0], 1), y, c.Mul(xs[0], xs[0])}
			}))), tuples(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
				return []*torch.Tensor{c.Add(c.Mul(xs[0], xs[2]), xs[3]), xs[1]}
			}))
		},
	} {
		for _, limit := range []int64{1 << 30, 1} {
			t.Run(fmt.Sprint(name, ", limit ", limit), func(t *testing.T) {
				torchtest.Check(t)
				want := trained(t, 1, build, func(s *nn.Sequential) nn.Layer { return s }, []int64{6, 8})
				var modules []*autoremat.Module
				defer func() {
					for _, m := range slices.Backward(modules) {
						m.Close()
					}
				}()
				got := trained(t, 1, build, func(s *nn.Sequential) nn.Layer {
					m := must.Get(autoremat.New(s, autoremat.Config{Limit: 1 << 30}))(t)
					modules = append(modules, m)
					if limit == 1 {
						return tight{m, m}
					}
					return m
				}, []int64{6, 8})
				if d := want.differs(got); d != "" || modules[0].Plan() == nil {
					t.Errorf("%s differs; plan: %v", d, modules[0].Plan())
				}
			})
		}
	}
}

// tight is a module that has the least limit.
type tight struct {
	nn.Layer
	m *autoremat.Module
}

// wraps are modules that keep everything, and ones that keep as little as can be.
func wraps(t *testing.T) map[string]func(*torch.Ctx, *nn.Sequential) wrapped {
	loose := under(t, 1<<30, nil)
	return map[string]func(*torch.Ctx, *nn.Sequential) wrapped{"loose": loose, "tight": func(c *torch.Ctx, m *nn.Sequential) wrapped {
		w := loose(c, m)
		w.layer = tight{w.m, w.m}
		return w
	}}
}

func (p tight) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	return p.ForwardTuple(c, []*torch.Tensor{x})[0]
}

func (p tight) ForwardTuple(c *nn.Ctx, xs []*torch.Tensor) (ys []*torch.Tensor) {
	if !c.Grad() {
		return p.m.ForwardTuple(c, xs)
	}
	if err := p.m.SetLimit(1); err != nil {
		panic(err)
	}
	var short *plan.MemoryError
	err := torch.Try(func() { ys = p.m.ForwardTuple(c, xs) })
	if errors.As(err, &short) {
		if err := p.m.SetLimit(short.Least()); err != nil {
			panic(err)
		}
		ys = p.m.ForwardTuple(c, xs)
	} else if err != nil {
		panic(err)
	}
	if err := p.m.SetLimit(1 << 30); err != nil { // plans know nothing of what others take
		panic(err)
	}
	return ys
}

// Layers in front that are not trained are run once.
func TestFrozenLayersInFront(t *testing.T) {
	torchtest.Check(t)
	q := tower()
	q.name, q.optimizer = "frozen", sgd
	build := q.model
	runs := 0
	q.model = func() *nn.Sequential {
		front := nn.NewSequential(nn.NewLinear(32, 32), nn.NewTanh(), layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			if c.Training && !c.Recomputing {
				runs++
			}
			return c.Tanh(x)
		}))
		for _, p := range nn.Params(front) {
			p.Freeze()
		}
		return nn.NewSequential(front, build())
	}
	want := q.run(t, 3, plain, nil, nil)
	limit := q.least(t)
	runs = 0
	got := q.run(t, 3, under(t, limit, nil), func(int, wrapped) { device.ResetPeak() }, func(step int, w wrapped) {
		if peak := device.Memory().Peak; peak > w.m.Predicted() || peak > limit {
			t.Errorf("step %d: the peak is %d, predicted were %d of %d", step, peak, w.m.Predicted(), limit)
		}
	})
	if d := want.differs(got); d != "" || runs > 3+8 { // measuring runs it as well
		t.Errorf("%s differs; the units in front run %d times", d, runs)
	}
}

// Parts of the model may be frozen, and set to evaluation, between steps: the next step is planned
// anew, and takes no more than is predicted.
func TestModesBetweenSteps(t *testing.T) {
	torchtest.Check(t)
	q := tower()
	q.name, q.optimizer = "thawing", sgd
	build := q.model
	var model *nn.Sequential
	q.model = func() *nn.Sequential { model = build(); return model }
	set := func(step int, _ wrapped) {
		switch step {
		case 0:
			nn.Freeze(model.Slice(0, 12))
			nn.Eval(model.Slice(0, 12))
		case 1:
			nn.Unfreeze(model)
			nn.Train(model)
		}
	}
	want := q.run(t, 3, plain, nil, set)
	got := q.run(t, 3, under(t, q.least(t)*5/4, nil), func(int, wrapped) { device.ResetPeak() }, func(step int, w wrapped) {
		if peak := device.Memory().Peak; peak > w.m.Predicted() {
			t.Errorf("step %d: the peak is %d, predicted were %d", step, peak, w.m.Predicted())
		}
		set(step, w)
	})
	if d := want.differs(got); d != "" {
		t.Errorf("%s differs", d)
	}
}

// What is atomic is one layer to the plan, whatever it is made of, and has the names of its parts.
func TestAtomic(t *testing.T) {
	inner := func() *nn.Sequential {
		return nn.NewSequential(nn.NewLinear(8, 8), nn.NewTanh(), nn.NewLinear(8, 8), nn.NewTanh())
	}
	names := func(m nn.Module) (out []string) {
		for _, p := range nn.State(m) {
			out = append(out, p.Name)
		}
		return out
	}
	atomic := nn.NewSequential(autoremat.Atomic(inner()))
	if a, b := names(nn.NewSequential(inner())), names(atomic); len(atomic.Layers()) != 1 || !slices.Equal(a, b) {
		t.Errorf("names are %v, and %v in an atomic layer", a, b)
	}
}

// TestGraphsThatAreKept: two losses go back through one graph. What was saved before the loss is
// used twice, and what is recomputed is recomputed twice.
func TestGraphsThatAreKept(t *testing.T) {
	torchtest.Check(t)
	q := tower()
	q.retain, q.batches, q.inputGrad = true, 2, true
	want := q.run(t, 2, plain, nil, nil)
	for name, wrap := range wraps(t) {
		if d := want.differs(q.run(t, 2, wrap, nil, nil)); d != "" {
			t.Errorf("%s: %s differs", name, d)
		}
	}
}

// Where the input is computed in front of the module, what computes it gets the gradient that it gets from the
// model alone: with the gaps that a Cat leaves, from which libtorch computes that of SiLU to other last
// bits, or dense where it comes through a border between layers.
func TestOperatorsInFrontGetTheModelsGradient(t *testing.T) {
	torchtest.Check(t)
	interleaved := func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		x = c.Reshape(x, 16, 37, 1)
		return c.Reshape(c.Cat([]*torch.Tensor{x, c.Detach(c.Tanh(x))}, 2), 16, 74)
	}
	same := func(_ *nn.Ctx, x *torch.Tensor) *torch.Tensor { return x }
	for _, layers := range [][]func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor{{interleaved}, {same, interleaved}} {
		q := problem{
			model: func() *nn.Sequential {
				var out []nn.Layer
				for _, f := range layers {
					out = append(out, layer(f))
				}
				return nn.NewSequential(append(out, nn.NewLinear(74, 5))...)
			},
			input: []int64{16, 37}, target: classes(16, 5), loss: nn.CrossEntropy(), inputGrad: true,
		}
		gradient := func(wrap func(c *torch.Ctx, m *nn.Sequential) wrapped) (of []byte) {
			q.with(wrap, func(c *torch.Ctx, w wrapped) {
				x, y := q.x(c, 0).SetRequiresGrad(true), q.target(c, 0)
				c.SetGrad(true)
				n := nn.NewCtx(c, nn.Config{Training: true, Seed: 5})
				loss := nn.RunLoss(n, q.loss, []*torch.Tensor{w.layer.Forward(n, c.SiLU(x))}, []*torch.Tensor{y})
				c.SetGrad(false)
				c.Backward([]*torch.Tensor{loss}, []*torch.Tensor{nil}, false)
				of = torch.Bytes(c.GradOf(x))
			})
			return of
		}
		want := gradient(plain)
		for name, wrap := range wraps(t) {
			if !bytes.Equal(gradient(wrap), want) {
				t.Errorf("%d layers in front, %s: the gradient differs", len(layers), name)
			}
		}
	}
}

// Forwards of several goroutines, each with a context of its own, go their own ways.
func TestConcurrentForwards(t *testing.T) {
	b := newFixture(t, tower().model(), autoremat.Config{Limit: 1 << 30})
	x := b.Keep(b.normal(16, 32))
	defer x.Free()
	for range 2 {
		must.Do(t, b.step(x))
	}
	want := ""
	b.NoGrad(func() {
		want = string(torch.Bytes(b.m.Forward(nn.NewCtx(b.Ctx, nn.Config{Training: true, Seed: 9}), x)))
	})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			c := torch.NewCtx(torch.Options{Device: device, Threads: 1, Grad: true})
			defer c.Close()
			n := nn.NewCtx(c, nn.Config{Training: true, Seed: 9})
			for range 5 {
				y := b.m.Forward(n, c.Detach(x))
				if string(torch.Bytes(y)) != want {
					t.Error("another output")
				}
				c.Close()
			}
		})
	}
	wg.Wait()
}
