package pipe_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/remat"
	"penstock.example/torch"
)

// A layer may run another pipe, whatever its own is doing, and another layer the same one at the
// same time.
func TestLayersRunAnotherPipe(t *testing.T) {
	torchtest.Check(t)
	inner := started(t, nn.NewSequential(nn.NewLinear(4, 4), nn.NewTanh()),
		pipe.Config{Balance: []int{1, 1}, Chunks: 2, Devices: []torch.Device{torch.CPU(4), torch.CPU(5)}})
	c := torch.NewCtx(torch.Options{Threads: 1, Device: torch.CPU(4)})
	defer c.Close()
	last := torch.NewCtx(torch.Options{Threads: 1, Device: torch.CPU(5)})
	defer last.Close()
	b := pipe.Batch{Input: pipe.Rows(normal(4, 4)(c, 0)), Target: pipe.Rows(normal(4, 4)(last, 1))}
	ctx := context.Background()
	want, err := inner.Step(ctx, b, squares{})
	if err != nil {
		t.Fatal(err)
	}
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
				p, err := pipe.New(nn.NewSequential(nn.NewTanh()), pipe.Config{Devices: []torch.Device{torch.CPU(6)}})
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
	before, err := p.Step(ctx, x, squares{})
	if err != nil {
		t.Fatal(err)
	}
	first.on(run)
	second.on(run)
	var after pipe.Result
	err = within(func() (err error) { after, err = p.Step(ctx, x, callingLoss{call: run}); return err })
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

// Looking up a program took the lock under which runs are started. It is held as long as a worker
// has too much to do to be given another run, and the worker waited for it.
func TestProgramWhileRunsAreStarted(t *testing.T) {
	torchtest.Check(t)
	l := &caller{}
	p := started(t, nn.NewSequential(l), pipe.Config{})
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	x := c.Ones(torch.Float32, 1, 1)
	var others sync.WaitGroup
	var once sync.Once
	eval := func() error { y, err := eval(p, context.Background(), x); y.Free(); return err }
	l.on(func(*nn.Ctx) {
		once.Do(func() {
			for range 40 {
				others.Go(func() {
					if err := eval(); err != nil {
						t.Error(err)
					}
				})
			}
			for !blockedIn("chan send", "pipe.(*Pipe).start") {
				runtime.Gosched()
			}
			if _, err := p.Program(3); err != nil {
				t.Error(err)
			}
		})
	})
	if err := within(eval); err != nil {
		t.Error(err)
	}
	others.Wait()
}

// blockedIn says whether a goroutine that is in a function is in such a state, as stacks name it.
func blockedIn(state, function string) bool {
	stacks := make([]byte, 1<<20)
	for _, s := range strings.Split(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
		if head, _, _ := strings.Cut(s, "\n"); strings.Contains(head, "["+state) && strings.Contains(s, function) {
			return true
		}
	}
	return false
}

// A layer that is being measured may run a pipe that measures its own layers for that: the one
// waited for the other to be done.
func TestMeasuringWhileMeasured(t *testing.T) {
	torchtest.Check(t)
	linear := func(last nn.Layer) *nn.Sequential {
		return nn.NewSequential(nn.NewLinear(4, 4), nn.NewTanh(), nn.NewLinear(4, 4), last)
	}
	cfg := func(first int) pipe.Config {
		return pipe.Config{Balance: []int{2, 2}, Chunks: 2, Checkpoint: pipe.Optimal,
			Devices: []torch.Device{torch.CPU(first), torch.CPU(first + 1)}}
	}
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	b := pipe.Batch{Input: pipe.Rows(normal(4, 4)(c, 0)), Target: pipe.Rows(normal(4, 4)(c, 1))}
	ctx := context.Background()

	alone := started(t, linear(nn.NewTanh()), cfg(0))
	if _, err := alone.PlanFor(ctx, b, squares{}); err != nil {
		t.Fatal(err)
	}
	inner, l := started(t, linear(nn.NewTanh()), cfg(2)), &caller{}
	outer := started(t, linear(l), cfg(4))
	l.on(func(*nn.Ctx) {
		if _, err := inner.PlanFor(ctx, b, squares{}); err != nil {
			t.Error(err)
		}
	})
	if err := within(func() error { _, err := outer.PlanFor(ctx, b, squares{}); return err }); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*pipe.Pipe{inner, outer} {
		for i, s := range p.Measured() {
			for j, layer := range s.Chain.Layers {
				sizes := func(l remat.Layer) [4]int64 { return [4]int64{l.Output, l.Saved, l.ForwardTmp, l.BackwardTmp} }
				got, want := sizes(layer), sizes(alone.Measured()[i].Chain.Layers[j])
				if got != want {
					t.Errorf("stage %d, unit %d: measured %v, alone %v", i, j, got, want)
				}
			}
		}
	}
}

// A run that is closed within its own backward is closed when that is over.
func TestRunClosedInItsBackward(t *testing.T) {
	for _, retained := range []bool{false, true} {
		t.Run(fmt.Sprintf("retained=%v", retained), func(t *testing.T) {
			torchtest.Check(t)
			l := &caller{}
			model := nn.NewSequential(nn.NewLinear(4, 4), l)
			p := started(t, model, pipe.Config{Chunks: 3, Checkpoint: pipe.Always})
			c := torch.NewCtx(torch.Options{})
			defer c.Close()
			run, err := p.Forward(context.Background(), pipe.Batch{Input: pipe.Rows(normal(6, 4)(c, 0))})
			if err != nil {
				t.Fatal(err)
			}
			g := c.OnesLike(run.Output()[0])
			l.on(func(*nn.Ctx) { run.Close() })
			err = within(func() error {
				if retained {
					return run.BackwardRetained(context.Background(), g)
				}
				return run.Backward(context.Background(), g)
			})
			if err != nil {
				t.Error(err)
			}
			if run.Output() != nil {
				t.Error("the run is still open")
			}
			nn.ZeroGrads(model)
		})
	}
}
