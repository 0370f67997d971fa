package pipe_test

import (
	"context"
	"fmt"
	"math"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// normed has batch norms of every kind, so that each stage of a cut has some.
func normed() *nn.Sequential {
	conv := func() nn.Layer { return nn.NewConv2d(2, 2, nn.Square(1), nn.Conv2dConfig{}) }
	return nn.NewSequential(conv(), nn.NewBatchNorm2d(2, nn.BatchNormConfig{}), conv(),
		nn.NewBatchNorm2d(2, nn.BatchNormConfig{Cumulative: true}),
		nn.NewReLUInPlace(), nn.NewBatchNorm2d(2, nn.BatchNormConfig{NoRunningStats: true}), nn.NewBatchNorm2d(2,
			nn.BatchNormConfig{NoAffine: true, Momentum: 0.5}))
}

// Statistics and gradients are the plain loop's, for every balance and policy, with ragged
// micro-batches and with fewer than were asked for.
func TestDeferredBatchNorm(t *testing.T) {
	torchtest.Check(t)
	for _, row := range []struct {
		rows   int64
		chunks int
	}{{7, 3}, {3, 8}} {
		q := trial{model: normed, rows: row.rows, steps: 2, deferred: true, inputs: one(normal(row.rows, 2, 3, 3)),
			targets: one(normal(row.rows, 2, 3, 3)), loss: squares{}}
		q.check(t, row.chunks)
	}
}

// Running statistics move once for each mini-batch, by what its rows have in mean and in unbiased
// variance, also of very few values and where fewer micro-batches come than were asked for. The
// numbers are computed in Go. An implementation that divides by N is off by N/(N-1), which is 2 at
// N = 2.
func TestDeferredBatchNormStatistics(t *testing.T) {
	torchtest.Check(t)
	for _, row := range []struct {
		rows, length int64 // of the input [rows, 1, length]
		chunks       int
		microBatches int
	}{
		{2, 1, 1, 1}, {3, 1, 1, 1}, {4, 1, 1, 1}, {4, 1, 2, 2}, // N = 2, 3, 4 values
		{1, 2, 4, 1}, {2, 2, 2, 2}, {2, 2, 16, 2}, // and with one row for each micro-batch
		{5, 1, 2, 2}, {5, 2, 4, 4}, {5, 2, 64, 5}, // ragged, and fewer than asked for
	} {
		for _, policy := range policies {
			for _, cumulative := range []bool{false, true} {
				b := nn.NewBatchNorm1d(1, nn.BatchNormConfig{Cumulative: cumulative})
				model := nn.NewSequential(nn.NewIdentity(), b, nn.NewTanh())
				p := started(t, model, pipe.Config{Balance: []int{1, 2}, Chunks: row.chunks, Checkpoint: policy,
					DeferredBatchNorm: true})
				c := torch.NewCtx(torch.Options{Threads: 1})
				mean, variance := 0.0, 1.0
				for step := range 3 {
					x := normal(row.rows, 1, row.length)(c, step)
					result, err := p.Step(context.Background(),
						pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(x), Step: int64(step)}, squares{})
					if err != nil {
						t.Fatal(err)
					}
					if result.MicroBatches != row.microBatches {
						t.Errorf("%v: %d micro-batches, want %d", row, result.MicroBatches, row.microBatches)
					}
					share := 0.1
					if cumulative {
						share = 1 / float64(step+1)
					}
					m, v := moments(torch.Values[float32](x))
					mean, variance = mean+share*(m-mean), variance+share*(v-variance)
					where := fmt.Sprintf("%v, %v, cumulative %v, step %d", row, policy, cumulative, step)
					if got := float64(torch.Values[float32](b.RunningMean.Tensor())[0]); math.Abs(got-mean) > 2e-7 {
						t.Errorf("%s: mean %v, want %v", where, got, mean)
					}
					if got := float64(torch.Values[float32](b.RunningVar.Tensor())[0]); math.Abs(got-variance) > 1e-6*variance {
						t.Errorf("%s: variance %v, want %v", where, got, variance)
					}
					if got := torch.Item[int64](b.NumBatchesTracked.Tensor()); got != int64(step+1) {
						t.Errorf("%s: %d batches tracked, want %d", where, got, step+1)
					}
				}
				c.Close()
				p.Close()
				nn.Free(model)
			}
		}
	}
}

// moments are the mean and the unbiased variance, by two passes.
func moments(x []float32) (mean, variance float64) {
	for _, v := range x {
		mean += float64(v) / float64(len(x))
	}
	for _, v := range x {
		variance += (float64(v) - mean) * (float64(v) - mean) / float64(len(x)-1)
	}
	return mean, variance
}

// A mini-batch that fails before a stage has seen all its micro-batches moves nothing there, and
// leaves nothing to the next.
func TestDeferredBatchNormOfAFailedStep(t *testing.T) {
	torchtest.Check(t)
	s := &saboteur{how: func(*nn.Ctx, *torch.Tensor) *torch.Tensor { panic("stop") }}
	b := nn.NewBatchNorm1d(3, nn.BatchNormConfig{})
	model := nn.NewSequential(nn.NewLinear(3, 3), s, b)
	p := started(t, model, pipe.Config{Balance: []int{1, 2}, Chunks: 3, DeferredBatchNorm: true})
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	batch := pipe.Batch{Input: pipe.Rows(normal(9, 3)(c, 0)), Target: pipe.Rows(normal(9, 3)(c, 1))}
	before := snapshot(b, nil, gradient)
	for microBatch := range 3 {
		s.when = func(c *nn.Ctx) bool { return c.MicroBatch == microBatch }
		for _, run := range []func() error{
			func() error { _, err := p.Step(context.Background(), batch, squares{}); return err },
			func() error { _, err := p.Forward(context.Background(), batch); return err },
			func() error {
				_, err := p.Infer(context.Background(), inMode(batch, true))
				return err
			},
		} {
			if err := run(); err == nil {
				t.Fatal("no failure")
			}
			nn.ZeroGrads(model)
			if d := before.differs(snapshot(b, nil, gradient)); d != "" {
				t.Errorf("a failure at micro-batch %d moved %s", microBatch, d)
			}
		}
	}
	s.when = nil
	if _, err := p.Step(context.Background(), batch, squares{}); err != nil {
		t.Fatal(err)
	}
	if got := torch.Item[int64](b.NumBatchesTracked.Tensor()); got != 1 {
		t.Errorf("%d batches tracked after the first step that went through", got)
	}
}
