package autoremat_test

import (
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
func trained(t *testing.T, seed uint64, build func(wrap func(*nn.Sequential) nn.Layer) *nn.Sequential,
	wrap func(*nn.Sequential) nn.Layer, x []int64) *record {
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
		return nn.NewSequential(nn.NewLinear(dim, dim), nn.NewDropout(0.3), nn.NewTanh(),
			nn.NewLinear(dim, dim), nn.NewBatchNorm1d(dim, nn.BatchNormConfig{}), nn.NewReLUInPlace())
	}
	for name, build := range map[string]func(wrap func(*nn.Sequential) nn.Layer) *nn.Sequential{
		"first, middle and last": func(wrap func(*nn.Sequential) nn.Layer) *nn.Sequential {
			return nn.NewSequential(wrap(part(8)), nn.NewTanh(),
				nn.NewSequential(nn.NewLinear(8, 8), wrap(part(8))), wrap(part(8)))
		},
		"under a checkpoint": func(wrap func(*nn.Sequential) nn.Layer) *nn.Sequential {
			return nn.NewSequential(nn.NewLinear(8, 8),
				nn.Checkpointed(nn.NewSequential(nn.NewTanh(), wrap(part(8)),
					nn.NewDropout(0.2))), nn.NewLinear(8, 2))
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
				l.f = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
					return c.PlainLinear(x, p.Tensor(), nil)
				}
				return l
			}
			return nn.NewSequential(first, nn.NewTanh(),
				wrap(nn.NewSequential(nn.NewLinear(8, 8), tie(), nn.NewTanh())), nn.NewTanh(), tie())
		},
		"tuples at the end": func(wrap func(*nn.Sequential) nn.Layer) *nn.Sequential {
			return nn.NewSequential(wrap(nn.NewSequential(nn.NewLinear(8, 8), nn.NewTanh(),
				tuples(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
					y := c.Op("aten::tanh", xs[0])
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
	if a, b := names(nn.NewSequential(inner())), names(atomic); len(atomic.Layers()) != 1 ||
		!slices.Equal(a, b) {
		t.Errorf("names are %v, and %v in an atomic layer", a, b)
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
