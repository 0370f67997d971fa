package pipe_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"penstock.example/internal/link"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// A tuple of which the second tensor does not fit on the receiving stage's device, in either
// direction, leaves nothing allocated: not the first tensor, nor what still waited on the link.
func TestReceiveThatDoesNotFit(t *testing.T) {
	torchtest.Check(t)
	const rows, width = 4, 1 << 14
	for _, full := range []int{0, 1} {
		var limit func()
		pair := tuples(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
			return []*torch.Tensor{c.MulScalar(xs[0], 2), c.Mul(c.SumDim(xs[0], []int64{1}, true), c.Ones(torch.Float32, 1, width))}
		})
		join := tuples(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
			limit()
			return []*torch.Tensor{c.Add(c.SumDim(xs[0], []int64{1}, true), c.SumDim(xs[1], []int64{1}, true))}
		})
		model := nn.NewSequential(nn.NewLinear(8, 8), pair, join)
		p := started(t, model, pipe.Config{Balance: []int{2, 1}, Chunks: 2, Checkpoint: pipe.Never})
		c := torch.NewCtx(torch.Options{Device: torch.CPU(5)})
		batch := pipe.Batch{Input: pipe.Rows(normal(rows, 8)(c, 0)), Target: pipe.Rows(normal(rows, 1)(c, 1))}
		restrict := func() { torch.CPU(full).SetLimit(torch.CPU(full).Memory().Live + width/2) }
		limit = func() {}
		if full == 1 {
			restrict()
		} else {
			limit = restrict // when forward is over on the first stage, and the gradients are still to come
		}
		_, err := p.Step(context.Background(), batch, mean{})
		torch.CPU(full).SetLimit(0)
		if !errors.Is(err, torch.ErrOutOfMemory) {
			t.Errorf("cpu:%d: got %v, want an error that is torch.ErrOutOfMemory", full, err)
		}
		limit = func() {}
		if _, err := p.Step(context.Background(), batch, mean{}); err != nil {
			t.Errorf("cpu:%d: with memory enough: %v", full, err)
		}
		nn.ZeroGrads(model)
		c.Close()
	}
}

// A stage that fails while others wait in calls of their links ends these. The run returns its error
// alone, and nothing stays allocated.
func TestFailureEndsWaitsOnLinks(t *testing.T) {
	torchtest.Check(t)
	wrong := errors.New("wrong")
	for _, row := range []struct{ meets, delays bool }{{true, false}, {false, true}, {true, true}} {
		fails := true
		middle := layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			if fails {
				panic(wrong)
			}
			return c.Tanh(x)
		})
		model := nn.NewSequential(nn.NewLinear(4, 4), middle, nn.NewLinear(4, 3))
		p := started(t, model, pipe.Config{Balance: []int{1, 1, 1}, Chunks: 3})
		p.SetLink(func(worker []int) link.Link { return newWire(row.meets, row.delays, worker) })
		c := torch.NewCtx(torch.Options{})
		defer c.Close()
		batch := pipe.Batch{Input: pipe.Rows(normal(6, 4)(c, 0)), Target: pipe.Rows(normal(6, 3)(c, 1))}
		_, err := p.Step(context.Background(), batch, squares{})
		var failed *pipe.Error
		if !errors.As(err, &failed) || failed.Stage != 1 || !strings.Contains(err.Error(), "wrong") {
			t.Errorf("%+v: got %v, want the error of stage 1", row, err)
		}
		fails = false
		if _, err := p.Step(context.Background(), batch, squares{}); err != nil {
			t.Errorf("%+v: the step after it: %v", row, err)
		}
	}
}
