package autoremat_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"penstock.example/autoremat"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/planner"
	"penstock.example/remat"
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
		for planned, ops := range map[string]func(n int) []remat.Op{"all": remat.All, "solved": nil} {
			t.Run(name+", "+planned, func(t *testing.T) {
				torchtest.Check(t)
				want := trained(t, 1, build, func(s *nn.Sequential) nn.Layer { return s }, []int64{6, 8})
				var modules []*autoremat.Module
				defer func() {
					for _, m := range slices.Backward(modules) {
						m.Close()
					}
				}()
				again := false
				got := trained(t, 1, build, func(s *nn.Sequential) nn.Layer {
					var m *autoremat.Module
					m, err := autoremat.New(s, autoremat.Config{Limit: 1 << 30, Warmup: 1, Repeats: 1, Report: func(autoremat.Report) { again = true }})
					if err != nil {
						t.Fatal(err)
					}
					modules = append(modules, m)
					return preset{m, m, ops}
				}, []int64{6, 8})
				if d := want.differs(got); d != "" || !again {
					t.Errorf("%s differs; planned: %v", d, again)
				}
			})
		}
	}
}

// preset is a module that is given a plan once it is measured.
type preset struct {
	nn.Layer
	m   *autoremat.Module
	ops func(n int) []remat.Op
}

func (p preset) ForwardTuple(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
	ys := p.m.ForwardTuple(c, xs)
	if chain, err := p.m.Chain(); err == nil && p.ops != nil {
		if err := p.m.SetPlan(remat.Plan{Ops: p.ops(len(chain.Layers))}); err != nil {
			panic(err)
		}
	}
	return ys
}

// Layers in front that are not trained are run once, and are no part of the plan.
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
	limit := q.refusal(t, 1).Least
	runs = 0
	got, m := q.under(t, limit, func(step int, m *autoremat.Module) {
		if peak := device.Memory().Peak; peak != m.Predicted() || peak > limit {
			t.Errorf("step %d: the peak is %d, predicted were %d of %d", step, peak, m.Predicted(), limit)
		}
	})
	if d := want.differs(got); d != "" {
		t.Errorf("%s differs", d)
	}
	chain, err := m.Chain()
	if err != nil || chain.Prologue == 0 || runs > 3+8 { // measuring runs it as well
		t.Errorf("%d units in front, run %d times; %v", chain.Prologue, runs, err)
	}
}

// What is atomic is one unit, whatever it is made of.
func TestAtomic(t *testing.T) {
	inner := func() *nn.Sequential {
		return nn.NewSequential(nn.NewLinear(8, 8), nn.NewTanh(), nn.NewLinear(8, 8), nn.NewTanh())
	}
	units := func(model *nn.Sequential) []int {
		b := newFixture(t, model, autoremat.Config{Limit: 1 << 30})
		defer b.m.Close()
		if err := b.step(b.normal(16, 8)); err != nil {
			t.Fatal(err)
		}
		chain, err := b.m.Chain()
		if err != nil {
			t.Fatal(err)
		}
		return chain.Units
	}
	flat, atomic := units(nn.NewSequential(inner(), nn.NewLinear(8, 8))), units(nn.NewSequential(autoremat.Atomic(inner()), nn.NewLinear(8, 8)))
	if len(flat) < 3 || len(atomic) != 2 {
		t.Errorf("units are %v flattened and %v with an atomic layer", flat, atomic)
	}
	names := func(m nn.Module) (out []string) {
		for _, p := range nn.State(m) {
			out = append(out, p.Name)
		}
		return out
	}
	if a, b := names(nn.NewSequential(inner())), names(nn.NewSequential(autoremat.Atomic(inner()))); !slices.Equal(a, b) {
		t.Errorf("names are %v, and %v in an atomic layer", a, b)
	}
}

// TestGraphsThatAreKept: two losses go back through one graph. What was saved before the loss is
// used twice, and what is recomputed is recomputed twice.
func TestGraphsThatAreKept(t *testing.T) {
	for name, ops := range map[string]func(n int) []remat.Op{"none": remat.None, "all": remat.All, "sequential": sequential(t, 3)} {
		t.Run(name, func(t *testing.T) {
			torchtest.Check(t)
			q := mlp()
			q.retain, q.batches, q.inputGrad = true, 2, true
			if d := q.run(t, 2, plain, nil, nil).differs(q.run(t, 2, q.planned(t, autoremat.Config{Limit: 1 << 30}, ops), nil, nil)); d != "" {
				t.Errorf("%s differs", d)
			}
		})
	}
}

// TestSlots: the optimizer's state is reserved until the first step is over, also if only
// Config.Slots tells of it.
func TestSlots(t *testing.T) {
	q := tower()
	least := func(config autoremat.Config) int64 {
		b := newFixture(t, q.model(), config)
		defer b.m.Close()
		err := b.m.Measure(context.Background(), b.ctx(), autoremat.Sample{Input: []*torch.Tensor{b.normal(256, 32)}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = b.m.Solve(context.Background(), 1)
		var e *planner.MemoryError
		if !errors.As(err, &e) {
			t.Fatal(err)
		}
		b.Close()
		nn.Free(b.model)
		return e.Least()
	}
	none, two := least(autoremat.Config{}), least(autoremat.Config{Slots: 2})
	bytes := 4 * nn.Count(q.model())
	if two-none != 2*bytes {
		t.Errorf("two slots of %d bytes take %d", bytes, two-none)
	}
	o := adam()
	defer o.Close()
	if known := least(autoremat.Config{Optimizer: o}); known != two {
		t.Errorf("with Adam the least is %d, with two slots %d", known, two)
	}
}

// TestSlotsReserveBytesForTheUpdate: where the update sets the peak, the least limit includes the
// two copies of the largest parameter that an optimizer may make, beside the slots.
func TestSlotsReserveBytesForTheUpdate(t *testing.T) {
	const width = 512
	model := func() *nn.Sequential { return nn.NewSequential(nn.NewLinear(width, width), nn.NewLinear(width, width)) }
	least := func(slots int) int64 {
		b := newFixture(t, model(), autoremat.Config{Slots: slots})
		defer b.m.Close()
		if err := b.m.Measure(context.Background(), b.ctx(), autoremat.Sample{Input: []*torch.Tensor{b.normal(1, width)}}); err != nil {
			t.Fatal(err)
		}
		_, err := b.m.Solve(context.Background(), 1)
		var e *planner.MemoryError
		if !errors.As(err, &e) {
			t.Fatal(err)
		}
		b.Close()
		nn.Free(b.model)
		return e.Least()
	}
	state, update := 2*4*nn.Count(model()), int64(2*4*width*width)
	if more := least(2) - least(0); more > state+update || more < state+update-64<<10 { // without slots the peak is a backward's, with some activations
		t.Errorf("two slots take %d bytes more, want about %d and %d", more, state, update)
	}
}

// Forwards of several goroutines, each with a context of its own, go their own ways.
func TestConcurrentForwards(t *testing.T) {
	b := newFixture(t, tower().model(), autoremat.Config{Limit: 1 << 30})
	x := b.Keep(b.normal(16, 32))
	defer x.Free()
	for range 2 {
		if err := b.step(x); err != nil {
			t.Fatal(err)
		}
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

// The text of an error says what is short, by whom, and what to do; before the loss is known, that it is an estimate.
func TestMemoryErrorText(t *testing.T) {
	b := newFixture(t, tower().model(), autoremat.Config{Limit: 1000})
	err := b.step(b.normal(256, 32))
	var e *planner.MemoryError
	if !errors.As(err, &e) || !errors.Is(err, torch.ErrOutOfMemory) || len(e.Stages) != 1 || e.Stages[0].Device != device.String() {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"autoremat: a limit of 1000 bytes", "float32[256,32]", fmt.Sprint(e.Least(), " are needed, with a loss that is not known yet,"), `of layer "`, fmt.Sprint("set the limit to ", e.Least())} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %q", want, err)
		}
	}
}
