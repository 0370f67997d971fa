package pipe_test

import (
	"context"
	"errors"
	"maps"
	"runtime/pprof"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"penstock.example/internal/draws"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// within ends the process, with all stacks, if f has not returned after two minutes. A test that
// only failed would hang in its clean-up.
func within(f func() error) error {
	watchdog := time.AfterFunc(2*time.Minute, func() {
		var stacks strings.Builder
		_ = pprof.Lookup("goroutine").WriteTo(&stacks, 1)
		panic("it hangs:\n" + stacks.String())
	})
	defer watchdog.Stop()
	return f()
}

// caller passes its input on and calls somebody first, when there is somebody to call.
type caller struct {
	nn.Base
	call atomic.Pointer[func(c *nn.Ctx)]
}

func (l *caller) on(f func(c *nn.Ctx)) { l.call.Store(&f) }
func (l *caller) off()                 { l.call.Store(nil) }

func (l *caller) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	if f := l.call.Load(); f != nil {
		(*f)(c)
	}
	return c.Tanh(x)
}

// callingLoss is the mean of the squares, and calls somebody first.
type callingLoss struct {
	squares
	call func(c *nn.Ctx)
}

func (l callingLoss) Forward(c *nn.Ctx, y, t *torch.Tensor) *torch.Tensor {
	l.call(c)
	return l.squares.Forward(c, y, t)
}

// callingOptimizer calls somebody before it updates.
type callingOptimizer struct {
	optim.Optimizer
	call func()
}

func (o callingOptimizer) Prepare(c *torch.Ctx, params []nn.NamedParam) optim.Update {
	o.call()
	return o.Optimizer.Prepare(c, params)
}

// nest is a pipe with what its calls need. Its model has a layer that calls somebody, plainly,
// checkpointed, and checkpointed so deep that its recomputation takes another thread.
type nest struct {
	p                       *pipe.Pipe
	plain, recomputed, deep *caller
	batch                   pipe.Batch
	open                    *pipe.Run
	ones                    *torch.Tensor
	sgd                     optim.Optimizer
	model                   *nn.Sequential
}

func newNest(t *testing.T, cfg pipe.Config) *nest {
	n := &nest{plain: &caller{}, recomputed: &caller{}, deep: &caller{}}
	var deep nn.Layer = n.deep
	for range 40 { // a recomputation so deep takes another thread
		deep = nn.Checkpointed(deep)
	}
	n.model = nn.NewSequential(nn.NewLinear(4, 4), n.plain, nn.NewLinear(4, 4), nn.Checkpointed(n.recomputed), nn.NewLinear(4, 4), deep)
	cfg.Balance, cfg.Chunks = []int{2, 4}, 2
	p, err := pipe.New(n.model, cfg)
	if err != nil {
		t.Fatal(err)
	}
	n.p = p
	if n.sgd, err = optim.SGD(optim.Config{LR: 0.1}); err != nil {
		t.Fatal(err)
	}
	c := torch.NewCtx(torch.Options{Threads: 1})
	last := torch.NewCtx(torch.Options{Threads: 1, Device: p.Stages()[1].Device})
	n.batch = pipe.Batch{Input: pipe.Rows(normal(4, 4)(c, 0)), Target: pipe.Rows(normal(4, 4)(last, 1))}
	n.ones = last.Ones(torch.Float32, 4, 4)
	t.Cleanup(func() {
		p.Close()
		n.open.Close()
		nn.Free(n.model)
		last.Close()
		c.Close()
	})
	if n.open, err = p.Forward(context.Background(), n.batch); err != nil {
		t.Fatal(err)
	}
	return n
}

// calls are the calls of a pipe that wait for its workers.
func (n *nest) calls() map[string]func() error {
	ctx := context.Background()
	return map[string]func() error{
		"Close": n.p.Close,
		"Step":  func() error { _, err := n.p.Step(ctx, n.batch, squares{}); return err },
		"Forward": func() error {
			run, err := n.p.Forward(ctx, n.batch)
			if err == nil {
				run.Close()
			}
			return err
		},
		"BackwardRetained": func() error { return n.open.BackwardRetained(ctx, n.ones) },
		"Infer": func() error {
			result, err := n.p.Infer(ctx, n.batch)
			torch.FreeAll(result.Output)
			return err
		},
		"OnStages":      func() error { return n.p.OnStages(ctx, func(int, *torch.Ctx) error { return nil }) },
		"Convert":       func() error { return n.p.Convert(ctx, torch.Float32) },
		"Plan":          func() error { _, err := n.p.PlanFor(ctx, n.batch, squares{}); return err },
		"Place":         n.p.Place,
		"Update":        func() error { return n.p.Update(ctx, n.sgd) },
		"UpdateClipped": func() error { _, err := n.p.UpdateClipped(ctx, n.sgd, 1); return err },
	}
}

// peaceful are the calls that wait for nobody; they may be made anywhere.
func (n *nest) peaceful() {
	n.p.Plan()
	_, _ = n.p.Program(3)
	n.p.SetRecord(false)
	n.p.Config()
	n.p.Devices()
	for _, s := range n.p.Stages() {
		s.Params()
	}
}

// places are where a user's code runs on a worker of the pipe: each makes it run f there at least
// once.
func (n *nest) places() map[string]func(f func()) error {
	ctx := context.Background()
	step := func() error { _, err := n.p.Step(ctx, n.batch, squares{}); return err }
	inLayer := func(l *caller, when func(c *nn.Ctx) bool, run func() error) func(func()) error {
		return func(f func()) error {
			l.on(func(c *nn.Ctx) {
				if when(c) {
					f()
				}
			})
			defer l.off()
			return run()
		}
	}
	always := func(*nn.Ctx) bool { return true }
	recomputing := func(c *nn.Ctx) bool { return c.Recomputing }
	return map[string]func(f func()) error{
		"a layer of Step":            inLayer(n.plain, always, step),
		"a layer that is recomputed": inLayer(n.plain, recomputing, step),
		"a layer of Infer": inLayer(n.plain, always,
			func() error { y, err := eval(n.p, ctx, n.batch.Input[0].Tensor); y.Free(); return err }),
		"a layer of Forward": inLayer(n.plain, always,
			func() error { run, err := n.p.Forward(ctx, n.batch); run.Close(); return err }),
		"a layer of BackwardRetained": inLayer(n.plain, recomputing, func() error { return n.open.BackwardRetained(ctx, n.ones) }),
		"a checkpointed layer":        inLayer(n.recomputed, func(c *nn.Ctx) bool { return c.Grad() }, step),
		"a layer checkpointed deep":   inLayer(n.deep, func(c *nn.Ctx) bool { return c.Grad() }, step),
		"a loss": func(f func()) error {
			_, err := n.p.Step(ctx, n.batch, callingLoss{call: func(*nn.Ctx) { f() }})
			return err
		},
		"an update":              func(f func()) error { return n.p.OnStages(ctx, func(int, *torch.Ctx) error { f(); return nil }) },
		"an optimizer of Update": func(f func()) error { return n.p.Update(ctx, callingOptimizer{n.sgd, f}) },
		"a layer that Plan measures": inLayer(n.plain, always,
			func() error { _, err := n.p.PlanFor(ctx, n.batch, squares{}); return err }),
	}
}

// Each of these calls waited for the worker that made it. In a quick run each is made at two places.
func TestCallsFromWithin(t *testing.T) {
	names := &nest{p: &pipe.Pipe{}}
	for i, place := range slices.Sorted(maps.Keys(names.places())) {
		cfg := pipe.Config{Checkpoint: pipe.Always}
		if place == "a layer that Plan measures" {
			cfg.Checkpoint = pipe.Optimal
		}
		for j, call := range slices.Sorted(maps.Keys(names.calls())) {
			if !draws.Full && (i+j)%6 != 0 {
				continue
			}
			t.Run(place+"/"+call, func(t *testing.T) {
				torchtest.Check(t)
				n := newNest(t, cfg)
				inner, made := n.calls()[call], atomic.Int32{}
				err := within(func() error {
					return n.places()[place](func() {
						n.peaceful()
						err := inner()
						made.Add(1)
						if !errors.Is(err, pipe.ErrNested) || !strings.Contains(err.Error(), call) {
							t.Errorf("got %v, want ErrNested with the name of the call", err)
						}
					})
				})
				if err != nil {
					t.Errorf("the call around it failed: %v", err)
				}
				if made.Load() == 0 {
					t.Error("the call was not made")
				}
				nn.ZeroGrads(n.model)
				if err := within(inner); err != nil {
					t.Errorf("when nobody else runs, it fails: %v", err)
				}
				nn.ZeroGrads(n.model)
			})
		}
	}
}
