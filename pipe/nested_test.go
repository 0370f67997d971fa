package pipe_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"reflect"
	"regexp"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"penstock.example/internal/draws"
	"penstock.example/internal/must"
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
	return c.Op("aten::tanh", x)
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
	n.model = nn.NewSequential(nn.NewLinear(4, 4), n.plain, nn.NewLinear(4, 4),
		nn.Checkpointed(n.recomputed), nn.NewLinear(4, 4), deep)
	cfg.Balance, cfg.Chunks = []int{2, 4}, 2
	p := must.Get(pipe.New(n.model, cfg))(t)
	n.p = p
	n.sgd = must.Get(optim.SGD(optim.Config{LR: 0.1}))(t)
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
	n.open = must.Get(p.Forward(context.Background(), n.batch))(t)
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
		"OnStages": func() error {
			return n.p.OnStages(ctx, func(int, *torch.Ctx) error { return nil })
		},
		"Plan":          func() error { _, err := n.p.PlanFor(ctx, n.batch, squares{}); return err },
		"Place":         n.p.Place,
		"Update":        func() error { return n.p.Update(ctx, n.sgd) },
		"UpdateClipped": func() error { _, err := n.p.UpdateClipped(ctx, n.sgd, 1); return err },
	}
}

// peaceful are the calls that wait for nobody; they may be made anywhere.
func (n *nest) peaceful() {
	n.p.Plan()
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
		"a layer of BackwardRetained": inLayer(n.plain, recomputing,
			func() error { return n.open.BackwardRetained(ctx, n.ones) }),
		"a checkpointed layer":      inLayer(n.recomputed, func(c *nn.Ctx) bool { return c.Grad() }, step),
		"a layer checkpointed deep": inLayer(n.deep, func(c *nn.Ctx) bool { return c.Grad() }, step),
		"a loss": func(f func()) error {
			_, err := n.p.Step(ctx, n.batch, callingLoss{call: func(*nn.Ctx) { f() }})
			return err
		},
		"an update": func(f func()) error {
			return n.p.OnStages(ctx, func(int, *torch.Ctx) error { f(); return nil })
		},
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

// A layer may run another pipe, whatever its own is doing, and another layer the same one at the
// same time.
func TestLayersRunAnotherPipe(t *testing.T) {
	torchtest.Check(t)
	inner := started(t, nn.NewSequential(nn.NewLinear(4, 4), nn.NewTanh()),
		pipe.Config{Balance: []int{1, 1}, Chunks: 2, Devices: []torch.Device{torch.CPU(4), torch.CPU(5)}})
	c := newCtx(t, torch.Options{Threads: 1, Device: torch.CPU(4)})
	last := newCtx(t, torch.Options{Threads: 1, Device: torch.CPU(5)})
	b := pipe.Batch{Input: pipe.Rows(normal(4, 4)(c, 0)), Target: pipe.Rows(normal(4, 4)(last, 1))}
	ctx := context.Background()
	want := must.Get(inner.Step(ctx, b, squares{}))(t)
	nn.ZeroGrads(inner.Model())
	ran := atomic.Int32{}
	run := func(*nn.Ctx) {
		for _, f := range []func() error{
			func() error {
				got, err := inner.Step(ctx, b, squares{})
				if got.Loss != want.Loss {
					t.Errorf("the inner loss is %v, alone %v", got.Loss, want.Loss)
				}
				return err
			},
			func() error { y, err := eval(inner, ctx, b.Input[0].Tensor); y.Free(); return err },
			func() error { return inner.OnStages(ctx, func(int, *torch.Ctx) error { return nil }) },
			func() error {
				p, err := pipe.New(nn.NewSequential(nn.NewTanh()),
					pipe.Config{Devices: []torch.Device{torch.CPU(6)}})
				return errors.Join(err, p.Close())
			},
		} {
			if err := f(); err != nil {
				t.Errorf("on another pipe's worker: %v", err)
			}
		}
		ran.Add(1)
	}
	first, second := &caller{}, &caller{}
	model := nn.NewSequential(nn.NewLinear(4, 4), first, nn.Checkpointed(second))
	p := started(t, model, pipe.Config{Balance: []int{2, 1}, Chunks: 4, Checkpoint: pipe.Always})
	x := pipe.Batch{Input: b.Input, Target: b.Target}
	before := must.Get(p.Step(ctx, x, squares{}))(t)
	first.on(run)
	second.on(run)
	var after pipe.Result
	err := within(func() (err error) { after, err = p.Step(ctx, x, callingLoss{call: run}); return err })
	if err != nil || after.Loss != before.Loss {
		t.Errorf("loss %v, %v; without inner runs %v", after.Loss, err, before.Loss)
	}
	err = within(func() error {
		return p.OnStages(ctx, func(int, *torch.Ctx) error { run(nil); return nil })
	})
	if err != nil || ran.Load() == 0 {
		t.Errorf("got %v after %d inner runs", err, ran.Load())
	}
	nn.ZeroGrads(model)
	nn.ZeroGrads(inner.Model())
}

// Runs of several goroutines on one pipe, 80 of each kind, each get their own answer: outputs,
// losses and gradients of their own inputs are what the run gives alone. The parameters get the
// gradients of all; the numbers are whole, so that the sum does not depend on the order.
func TestConcurrentRuns(t *testing.T) {
	torchtest.Check(t)
	const goroutines, calls, rows = 4, 20, 8
	for _, cfg := range []pipe.Config{{Checkpoint: pipe.Never}, {Checkpoint: pipe.Always},
		{Schedule: oneAtATime},
		{Devices: make([]torch.Device, 3)}} {
		cfg.Balance, cfg.Chunks = []int{1, 1, 3}, 4
		// With a skip and a tied parameter, which runs could mix up as well.
		first, last := stashing(nil, "skip"), popping(nil, "skip")
		w := first.Param("w", wholly, 3, 3)
		v := last.Share("w", w)
		first.f = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			c.Stash("skip", x)
			return c.PlainLinear(x, w.Tensor(), nil)
		}
		last.f = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			return c.Add(x, c.PlainLinear(c.Pop("skip"), v.Tensor(), nil))
		}
		model := nn.NewSequential(first, exact(), last)
		p := started(t, model, cfg)

		type answer struct {
			output, input []byte // and the gradient of the input
			loss          float64
		}
		// once does one of the kinds of calls on the data of a goroutine.
		once := func(c *torch.Ctx, g, kind int) (a answer, err error) {
			defer c.Close()
			x := whole(c, g, rows, 3).SetRequiresGrad(kind > 0)
			defer x.SetGradOf(nil)
			target := whole(c, g+100, rows, 3)
			switch kind {
			case 0:
				result, err := p.Infer(context.Background(), pipe.Batch{Input: pipe.Rows(x)})
				if err != nil {
					return a, err
				}
				a.output = torch.Bytes(result.Output[0])
				result.Output[0].Free()
				return a, nil
			case 1:
				run, err := p.Forward(context.Background(), pipe.Batch{Input: pipe.Rows(x)})
				if err != nil {
					return a, err
				}
				a.output = torch.Bytes(run.Output()[0])
				if err := run.Backward(context.Background(), target); err != nil {
					return a, err
				}
			case 2:
				result, err := p.Step(context.Background(),
					pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(target)}, product{})
				if err != nil {
					return a, err
				}
				a.loss = result.Loss
			}
			a.input = torch.Bytes(c.GradOf(x))
			return a, nil
		}
		var want [goroutines][3]answer
		total := map[string][]float32{}
		c := torch.NewCtx(torch.Options{Threads: 1})
		for g := range goroutines {
			for kind := range 3 {
				want[g][kind] = must.Get(once(c, g, kind))(t)
			}
		}
		for _, q := range nn.Params(model) {
			for _, v := range floats(gradient(q)) {
				total[q.Name] = append(total[q.Name], calls*v)
			}
		}
		nn.ZeroGrads(model)

		var all sync.WaitGroup
		for g := range goroutines {
			for kind := range 3 {
				all.Add(1)
				go func() {
					defer all.Done()
					c := torch.NewCtx(torch.Options{Threads: 1})
					for call := range calls {
						got, err := once(c, g, kind)
						if err != nil || !reflect.DeepEqual(got, want[g][kind]) {
							t.Errorf("%s: call %d of kind %d of goroutine %d got another answer; %v",
								named(cfg),
								call, kind, g, err)
						}
					}
				}()
			}
		}
		all.Wait()
		for _, q := range nn.Params(model) {
			if got := floats(gradient(q)); !reflect.DeepEqual(got, total[q.Name]) {
				t.Errorf("%s: the gradients of %s do not add up: %v, want %v", named(cfg), q.Name, got,
					total[q.Name])
			}
		}
		c.Close()
		nn.ZeroGrads(model)
	}
}

// product is the sum of products with the target: its gradient is the target.
type product struct{}

func (product) Forward(c *nn.Ctx, y, t *torch.Tensor) *torch.Tensor { return c.Sum(c.Mul(y, t)) }
func (product) Reduction() torch.Reduction                          { return torch.ReduceSum }

// No thread, goroutine or tensor outlives its pipe, however many there were and whatever they did.
func TestPipesLeaveNothingBehind(t *testing.T) {
	torchtest.Check(t)
	model := everything()
	defer nn.Free(model)
	c := newCtx(t, torch.Options{Threads: 1})
	b := pipe.Batch{Input: pipe.Rows(normal(6, 4)(c, 0)), Target: pipe.Rows(normal(6, 4)(c, 1))}
	before, goroutines, tensors := 0, 0, int64(0)
	for i := range 20 {
		p := must.Get(pipe.New(model, pipe.Config{Balance: []int{1, 1, 2, 1}, Chunks: 2}))(t)
		if _, err := p.Step(context.Background(), b, squares{}); err != nil {
			t.Fatal(err)
		}
		run, err := p.Forward(context.Background(), b) // and left alone
		must.Do(t, err)
		p.Close()
		run.Close()
		nn.ZeroGrads(model)
		if i == 3 {
			before, goroutines, tensors = threads(t), runtime.NumGoroutine(), torch.LiveTensors()
		}
	}
	if n := torch.LiveTensors(); n != tensors {
		t.Errorf("%d tensors, %d after the first pipes", n, tensors)
	}
	for wait := 0; threads(t) > before+2 || runtime.NumGoroutine() > goroutines; wait++ {
		if wait == 100 {
			t.Fatalf("%d threads and %d goroutines, %d and %d after the first pipes", threads(t),
				runtime.NumGoroutine(), before, goroutines)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func threads(t *testing.T) int {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip("no /proc to count threads with")
	}
	n, _ := strconv.Atoi(regexp.MustCompile(`Threads:\s+(\d+)`).FindStringSubmatch(string(status))[1])
	return n
}
