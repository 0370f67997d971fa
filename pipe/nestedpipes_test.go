package pipe_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
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
