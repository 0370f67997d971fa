package pipe_test

import (
	"context"
	"fmt"
	"testing"

	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// linear is a Linear with its ReLU, as small as a layer gets.
type linear struct {
	nn.Base
	weight, bias *nn.Param
}

func newLinear(in, out int64) *linear {
	l := &linear{}
	l.weight = l.Param("weight", nn.FanIn(in), out, in)
	l.bias = l.Param("bias", nn.FanIn(in), out)
	return l
}

func (l *linear) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	y := c.Linear(x, l.weight.Tensor(), l.bias.Tensor())
	z := c.ReLU(y)
	y.Free()
	return z
}

type squares struct{}

func (squares) Forward(c *nn.Ctx, y, t *torch.Tensor) *torch.Tensor {
	return c.MSE(y, t, torch.ReduceMean)
}
func (squares) Reduction() torch.Reduction { return torch.ReduceMean }

func stack(n int, width int64) *nn.Sequential {
	s := nn.NewSequential()
	for i := range n {
		s.Add(fmt.Sprint(i), newLinear(width, width))
	}
	return s
}

// BenchmarkStages is the step of 16 x (Linear 1024 + ReLU), batch 256, never, in 8 micro-batches,
// over 1 and 2 stages.
func BenchmarkStages(b *testing.B) {
	for _, chunks := range []int{1, 4, 8} {
		for _, balance := range [][]int{{16}, {8, 8}} {
			b.Run(fmt.Sprintf("chunks=%d/stages=%d", chunks, len(balance)), func(b *testing.B) {
				benchmarkStep(b, stack(16, 1024), 1024, 256, pipe.Config{Balance: balance, Chunks: chunks, Checkpoint: pipe.Never})
			})
		}
	}
}

func benchmarkStep(b *testing.B, model *nn.Sequential, width, rows int64, cfg pipe.Config) {
	p, err := pipe.New(model, cfg)
	if err != nil {
		b.Fatal(err)
	}
	defer nn.Free(model)
	defer p.Close()
	c := torch.NewCtx(torch.Options{Seed: 7})
	defer c.Close()
	batch := pipe.Batch{Input: pipe.Rows(c.Normal_(c.Empty(torch.Float32, rows, width), 0, 1)),
		Target: pipe.Rows(c.Normal_(c.Empty(torch.Float32, rows, width), 0, 1))}
	step := func() {
		if _, err := p.Step(context.Background(), batch, squares{}); err != nil {
			b.Fatal(err)
		}
		nn.ZeroGrads(model)
		batch.Step++
	}
	step()
	for b.Loop() {
		step()
	}
}
