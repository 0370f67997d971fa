package pipe_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"penstock.example/internal/engine"
	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/plan"
	"penstock.example/torch"
)

// fault is where a model fails next: in one of its counting layers, on one micro-batch, in forward,
// when it is run again, or when a gradient comes back.
type fault struct {
	layer, microBatch int
	when              string // "" is never
	how               func()
	met               atomic.Bool
}

func (f *fault) at(layer, microBatch int, when string) {
	if f.when == when && f.microBatch == microBatch && f.layer == layer {
		f.met.Store(true)
		f.how()
	}
}

// counting counts its runs in a buffer, in place, also those in which running statistics are not to
// move.
type counting struct {
	nn.Base
	index int
	runs  *nn.Param
	fault *fault
}

func newCounting(index int, f *fault) *counting {
	l := &counting{index: index, fault: f}
	l.runs = l.Buffer("runs", torch.Int64, nn.Zeros)
	return l
}

func (l *counting) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	if c.Training {
		c.NoGrad(func() { c.AddInt_(l.runs.Tensor(), 1) })
	}
	when := "forward"
	if c.Recomputing {
		when = "again"
	}
	microBatch := c.MicroBatch
	l.fault.at(l.index, microBatch, when)
	// the extra tells which layer fails in forward, whatever the fault says
	if layer, ok := c.Extras["unlucky"].(int); ok && layer == l.index && microBatch == 1 {
		panic("unlucky")
	}
	y := c.Op("aten::tanh", x)
	if !c.Grad() {
		return y
	}
	return engine.Attach(c.Ctx, []*torch.Tensor{y}, []*torch.Tensor{c.Detach(y)},
		halted{func() { l.fault.at(l.index, microBatch, "backward") }})[0]
}

// halted passes gradients on after it has done something.
type halted struct{ first func() }

func (h halted) Backward(_ *torch.Ctx, a *engine.Arrival) {
	h.first()
	a.InputGrads[0] = a.Grads[0]
}

func (halted) Forget() {}

const countingLayers = 4

// movable is a model of five layers whose buffers move in every way there is.
func movable(f *fault) *nn.Sequential {
	norm := func(o nn.BatchNormConfig) nn.Layer { return nn.NewBatchNorm1d(3, o) }
	return nn.NewSequential(
		nn.NewSequential(nn.NewLinear(3, 3), newCounting(0, f), norm(nn.BatchNormConfig{})),
		nn.NewSequential(norm(nn.BatchNormConfig{}), newCounting(1, f)),
		nn.Checkpointed(nn.NewSequential(nn.NewLinear(3, 3), newCounting(2, f),
			norm(nn.BatchNormConfig{Momentum: 0.5}))),
		nn.NewSequential(newCounting(3, f), nn.NewLinear(3, 3)),
	)
}

// tried is a pipe whose runs fail, beside one of the same model that only takes the runs that
// succeed.
type tried struct {
	t           *testing.T
	name        string
	fault       *fault
	c           *torch.Ctx
	p, plain    *pipe.Pipe
	o, plainOpt optim.Optimizer
	steps       int64
	replans     bool // under a limit more is recomputed than without
}

func newTried(t *testing.T, cfg pipe.Config) *tried {
	r := &tried{t: t, fault: &fault{}, name: fmt.Sprintf("balance %v, %v, deferred %v", cfg.Balance,
		cfg.Checkpoint,
		cfg.DeferredBatchNorm)}
	cfg.Seed = 3
	r.p, r.plain = started(t, movable(r.fault), cfg), started(t, movable(&fault{}), cfg)
	r.o, r.plainOpt = momentum(t), momentum(t)
	r.c = torch.NewCtx(torch.Options{Device: torch.CPU(9), Threads: 1})
	t.Cleanup(r.c.Close)
	return r
}

func momentum(t *testing.T) optim.Optimizer {
	o := must.Get(optim.SGD(optim.Config{LR: 0.05, Momentum: 0.9}))(t)
	t.Cleanup(o.Close)
	return o
}

func (r *tried) batch() pipe.Batch {
	return pipe.Batch{Input: pipe.Rows(normal(8, 3)(r.c, int(r.steps))),
		Target: pipe.Rows(normal(8, 3)(r.c, int(r.steps)+50)), Step: &r.steps}
}

// traces is the model's state and which gradients there are, and what an optimizer keeps.
func traces(p *pipe.Pipe, o optim.Optimizer) map[string]string {
	out := map[string]string{}
	for _, s := range nn.State(p.Model()) {
		out[s.Name] = string(torch.Bytes(s.Tensor()))
		out["gradient of "+s.Name] = fmt.Sprint(s.Tensor().HasGrad())
	}
	for _, s := range o.State() {
		out["optimizer's "+s.Name] = string(torch.Bytes(s.Tensor))
	}
	for name, n := range o.Steps() {
		out["updates of "+name] = fmt.Sprint(n)
	}
	return out
}

// kinds are the runs that train.
var kinds = map[string]func(ctx context.Context, p *pipe.Pipe, b pipe.Batch) error{
	"step": func(ctx context.Context, p *pipe.Pipe, b pipe.Batch) error {
		_, err := p.Step(ctx, b, squares{})
		return err
	},
	"forward": func(ctx context.Context, p *pipe.Pipe, b pipe.Batch) error {
		b.Target = nil
		run, err := p.Forward(ctx, b)
		if err == nil {
			run.Close()
		}
		return err
	},
	"inference": func(ctx context.Context, p *pipe.Pipe, b pipe.Batch) error {
		b.Target = nil
		result, err := p.Infer(ctx, inMode(b, true))
		torch.FreeAll(result.Output)
		return err
	},
}

// try runs once and checks that an error leaves everything as it was. It says whether there was
// one.
func (r *tried) try(what, kind string, ctx context.Context) error {
	r.t.Helper()
	defer r.c.Close()
	before, live := traces(r.p, r.o), liveBytes(4)
	err := kinds[kind](ctx, r.p, r.batch())
	if err != nil {
		r.unchanged(what, before)
		if got := liveBytes(4); got != live {
			r.t.Fatalf("%s: %s, %s: live bytes %s, before %s", r.name, kind, what, got, live)
		}
	}
	return err
}

func (r *tried) unchanged(what string, before map[string]string) {
	r.t.Helper()
	for name, value := range traces(r.p, r.o) {
		if before[name] != value {
			r.t.Fatalf("%s: %s: %s has changed", r.name, what, name)
		}
	}
}

// agree takes the run that has succeeded on the other pipe too, and a step and an update on both,
// and compares.
func (r *tried) agree(what, kind string) {
	r.t.Helper()
	defer r.c.Close()
	ctx := context.Background()
	if kind != "" {
		if err := kinds[kind](ctx, r.plain, r.batch()); err != nil {
			r.t.Fatal(err)
		}
		r.steps++
	} else {
		for _, p := range []*pipe.Pipe{r.p, r.plain} {
			if _, err := p.Step(ctx, r.batch(), squares{}); err != nil {
				r.t.Fatal(err)
			}
		}
		r.steps++
	}
	if err := errors.Join(r.p.Update(ctx, r.o), r.plain.Update(ctx, r.plainOpt)); err != nil {
		r.t.Fatal(err)
	}
	got, want := traces(r.p, r.o), traces(r.plain, r.plainOpt)
	for name := range want {
		if r.replans && strings.HasSuffix(name, ".runs") {
			continue
		}
		if got[name] != want[name] {
			r.t.Fatalf("%s: %s: %s is not that of a run without failures", r.name, what, name)
		}
	}
}

var movableConfigs = []pipe.Config{
	{Balance: []int{3, 2, 1, 2}, Chunks: 3, Checkpoint: pipe.Always},
	{Balance: []int{4, 4}, Chunks: 3, Checkpoint: pipe.ExceptLast, DeferredBatchNorm: true},
	{Balance: []int{8}, Chunks: 3, Checkpoint: pipe.Never},
	{Balance: []int{3, 3, 2}, Chunks: 3, Checkpoint: pipe.Always, Schedule: oneAtATime},
	{Balance: []int{3, 3, 2}, Chunks: 3, Checkpoint: pipe.Never, DeferredBatchNorm: true,
		Devices: make([]torch.Device, 3)},
	{Balance: []int{5, 3}, Chunks: 3, Checkpoint: pipe.Optimal},
}

// A training run that fails at any layer and micro-batch, forward, in recomputation or backward,
// however it does, leaves the whole model as it was, and the next step has the bits of a run
// without failures.
func TestFailedRunChangesNothing(t *testing.T) {
	for _, cfg := range movableConfigs {
		torchtest.Check(t)
		r := newTried(t, cfg)
		r.agree("the first step", "")
		met := map[string]int{}
		for layer := range countingLayers {
			for microBatch := range 3 {
				for _, when := range []string{"forward", "again", "backward"} {
					for kind := range kinds {
						if kind != "step" && when != "forward" {
							continue
						}
						what := fmt.Sprintf("layer %d, micro-batch %d, %s", layer, microBatch, when)
						r.fault.layer, r.fault.microBatch, r.fault.when = layer, microBatch, when
						r.fault.how = func() { panic("broken") }
						r.fault.met.Store(false)
						err := r.try(what, kind, context.Background())
						if r.fault.met.Load() != (err != nil) {
							t.Fatalf("%s: %s, %s: met %v, %v", r.name, kind, what, r.fault.met.Load(), err)
						}
						r.fault.when = ""
						if err != nil {
							met[kind+" "+when]++
							r.agree(what, "")
						} else {
							r.agree(what, kind)
						}
					}
				}
			}
		}
		for _, want := range []string{"step forward", "step backward", "forward forward",
			"inference forward"} {
			if met[want] != 3*countingLayers {
				t.Errorf("%s: %d failures of %s", r.name, met[want], want)
			}
		}
		if met["step again"] == 0 { // Checkpointed runs again under every policy
			t.Errorf("%s: no failure of a recomputation", r.name)
		}
	}
}

// fuse is a context that is cancelled when it has been asked so often whether it is: a run asks
// before each of its actions.
type fuse struct {
	context.Context
	left atomic.Int64
}

func (f *fuse) Err() error {
	if f.left.Add(-1) < 0 {
		return context.Canceled
	}
	return nil
}

// The same for runs that are cancelled before each of their actions.
func TestCancelledRunChangesNothing(t *testing.T) {
	for _, cfg := range movableConfigs {
		torchtest.Check(t)
		r := newTried(t, cfg)
		r.agree("the first step", "")
		for kind := range kinds {
			cancelled := 0
			for ; ; cancelled++ {
				ctx := &fuse{Context: context.Background()}
				ctx.left.Store(int64(cancelled))
				what := fmt.Sprint("cancelled at question ", cancelled)
				err := r.try(what, kind, ctx)
				if err == nil {
					r.agree(what, kind)
					break
				}
				if !errors.Is(err, context.Canceled) {
					t.Fatal(err)
				}
				if cancelled%7 == 0 {
					r.agree(what, "")
				}
			}
			if actions := 3 * len(cfg.Balance); cancelled < actions {
				t.Errorf("%s: %s was cancelled at %d points only", r.name, kind, cancelled)
			}
		}
	}
}

// The same for runs that find no memory, at each of their allocations on each device; that the
// output is gathered is a part of the run.
func TestRefusedRunChangesNothing(t *testing.T) {
	gathering := 0
	for _, cfg := range movableConfigs {
		torchtest.Check(t)
		r := newTried(t, cfg)
		r.replans = cfg.Checkpoint == pipe.Optimal
		r.agree("the first step", "")
		for kind := range kinds {
			for _, d := range r.p.Devices() {
				limit := d.Memory().Live
				for {
					d.SetLimit(limit)
					err := r.try(fmt.Sprintf("%v limited to %d bytes", d, limit), kind, context.Background())
					d.SetLimit(0)
					if err == nil {
						r.agree("at last", kind)
						break
					}
					if strings.Contains(err.Error(), "gathering the output") {
						gathering++
					}
					var refused *torch.MemoryError
					var budget *plan.MemoryError
					switch {
					case errors.As(err, &refused):
						limit = refused.Live + refused.Requested
					case errors.As(err, &budget):
						limit = budget.Least()
					default:
						t.Fatal(err)
					}
				}
			}
		}
	}
	if gathering == 0 {
		t.Error("no output was refused")
	}
}

// A failed run drops the gradients that were not there before it, and only those.
func TestFailedRunDropsItsGradients(t *testing.T) {
	torchtest.Check(t)
	r := newTried(t, movableConfigs[0])
	b := r.batch()
	b.Input[0].Tensor.SetRequiresGrad(true)
	if _, err := r.p.Step(context.Background(), b, squares{}); err != nil {
		t.Fatal(err)
	}
	b.Input[0].Tensor.SetGradOf(nil)
	params := nn.Params(r.p.Model())
	for i, q := range params {
		if i%2 == 0 {
			q.Tensor().SetGradOf(nil)
		}
	}
	r.fault.layer, r.fault.microBatch, r.fault.when, r.fault.how = 0, 2, "backward",
		func() { panic("broken") }
	if _, err := r.p.Step(context.Background(), b, squares{}); err == nil {
		t.Fatal("no failure")
	}
	for i, q := range params {
		if got, want := q.Tensor().HasGrad(), i%2 == 1; got != want {
			t.Errorf("%s has a gradient: %v, before the failed run %v", q.Name, got, want)
		}
	}
	if b.Input[0].Tensor.HasGrad() {
		t.Error("the input has a gradient")
	}
	nn.ZeroGrads(r.p.Model())
}

// A forward that has returned has moved the buffers. A backward of it that fails puts back what it
// has changed itself, and nothing else.
func TestFailedBackwardOfARun(t *testing.T) {
	for _, cfg := range movableConfigs {
		torchtest.Check(t)
		r := newTried(t, cfg)
		ctx := context.Background()
		for layer := range countingLayers {
			for _, when := range []string{"again", "backward"} {
				for _, retained := range []bool{false, true} {
					b := r.batch()
					b.Target = nil
					run := must.Get(r.p.Forward(ctx, b))(t)
					between := traces(r.p, r.o)
					r.fault.layer, r.fault.microBatch, r.fault.when, r.fault.how = layer, 1, when,
						func() { panic("broken") }
					r.fault.met.Store(false)
					backward := run.Backward
					if retained {
						backward = run.BackwardRetained
					}
					err := backward(ctx, r.c.Op("aten::ones_like", run.Output()[0]))
					r.fault.when = ""
					if r.fault.met.Load() != (err != nil) {
						t.Fatalf("%s: met %v, %v", r.name, r.fault.met.Load(), err)
					}
					if err != nil {
						r.unchanged("a backward that failed", between)
					}
					run.Close()
					nn.ZeroGrads(r.p.Model())
					r.c.Close()
				}
			}
		}
	}
}

// Where runs of several goroutines overlap on one pipe, those that fail leave no trace in the
// buffers and those that succeed all of theirs.
func TestFailedRunsBesideOthers(t *testing.T) {
	for _, cfg := range movableConfigs[:5] {
		torchtest.Check(t)
		r := newTried(t, cfg)
		r.agree("the first step", "")
		count := func(p *pipe.Pipe) (out []int64) {
			for _, b := range nn.Buffers(p.Model()) {
				if b.DType() == torch.Int64 {
					out = append(out, torch.Item[int64](b.Tensor()))
				}
			}
			return out
		}
		zero := count(r.p)
		for _, kind := range []string{"step", "forward", "inference"} { // once each, to know what they count
			must.Do(t, kinds[kind](context.Background(), r.p, r.batch()))
		}
		once := count(r.p)
		const goroutines, rounds = 4, 5
		var all sync.WaitGroup
		for g := range goroutines {
			all.Go(func() {
				c := torch.NewCtx(torch.Options{Device: torch.CPU(9), Threads: 1})
				defer c.Close()
				b := pipe.Batch{Input: pipe.Rows(normal(8, 3)(c, g)), Target: pipe.Rows(normal(8, 3)(c, g))}
				for round := range rounds {
					for _, kind := range []string{"step", "forward", "inference"} {
						bad := b
						bad.Extras = map[string]any{"unlucky": (g + round) % countingLayers}
						if err := kinds[kind](context.Background(), r.p, bad); err == nil {
							t.Errorf("%s: %s did not fail", r.name, kind)
						}
						if err := kinds[kind](context.Background(), r.p, b); err != nil {
							t.Errorf("%s: %s: %v", r.name, kind, err)
						}
					}
				}
			})
		}
		all.Wait()
		for i, got := range count(r.p) {
			if want := once[i] + goroutines*rounds*(once[i]-zero[i]); got != want {
				t.Errorf("%s: counter %d is %d, want %d", r.name, i, got, want)
			}
		}
		nn.ZeroGrads(r.p.Model())
	}
}
