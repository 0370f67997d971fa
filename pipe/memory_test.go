package pipe_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// tanh is a layer whose graph holds exactly its output: Linear keeps its input, which is the output
// of the layer before, and Tanh keeps what it gives.
type tanh struct{ *linear }

func (l tanh) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	y := c.Linear(x, l.weight.Tensor(), l.bias.Tensor())
	z := c.Tanh(y)
	y.Free()
	return z
}

// mean is a loss that keeps nothing but its number. (aten::mse_loss keeps the memory of all
// differences behind its scalar.)
type mean struct{}

func (mean) Forward(c *nn.Ctx, y, _ *torch.Tensor) *torch.Tensor { return c.Mean(y) }
func (mean) Reduction() torch.Reduction                          { return torch.ReduceMean }

// After each step every device has exactly the bytes it had before, on any number of stages.
func TestLiveBytesReturnAfterEachStep(t *testing.T) {
	torchtest.Check(t)
	for _, balance := range [][]int{{8}, {4, 4}, {2, 2, 4}, {2, 2, 2, 2}} {
		for _, policy := range policies {
			model := nn.NewSequential(nn.NewConv2d(3, 8, nn.Pair{3, 3}, nn.Conv2dConfig{}),
				nn.NewBatchNorm2d(8, nn.BatchNormConfig{}), nn.NewReLUInPlace(),
				nn.NewBasicBlock(8, 8, 1), nn.NewDropout(0.1), nn.NewAdaptiveAvgPool2d(nn.Pair{1,
					1}), nn.NewFlatten(1, -1), nn.NewLinear(8, 5))
			p, err := pipe.New(model, pipe.Config{Balance: balance, Chunks: 3, Checkpoint: policy})
			if err != nil {
				t.Fatal(err)
			}
			c := torch.NewCtx(torch.Options{})
			b := pipe.Batch{Input: pipe.Rows(normal(7, 3, 8, 8)(c, 0)), Target: pipe.Rows(classes(7, 5)(c, 0))}
			want := ""
			for range 4 {
				if _, err := p.Step(context.Background(), b, nn.CrossEntropy()); err != nil {
					t.Fatal(err)
				}
				nn.ZeroGrads(model)
				if got := liveBytes(4); want != "" && got != want {
					t.Errorf("%v, %v: live bytes %s, after the first step %s", balance, policy, got, want)
				} else {
					want = got
				}
			}
			c.Close()
			p.Close()
			nn.Free(model)
		}
	}
}

// A limit is enforced to the byte: the peak of a step is enough, one byte less is not, and the
// refusal costs nothing but the step.
func TestLimitIsEnforced(t *testing.T) {
	torchtest.Check(t)
	d := torchtest.Device(5)
	model := nn.NewSequential(tanh{newLinear(8, 32)}, tanh{newLinear(32, 32)}, tanh{newLinear(32, 4)})
	p := started(t, model, pipe.Config{Chunks: 2, Checkpoint: pipe.Never, Devices: []torch.Device{d}})
	c := torch.NewCtx(torch.Options{Device: aside})
	defer c.Close()
	q := problem{input: normal(16, 8), target: later(1, normal(16, 4))}
	b := q.batch(c, p.Stages(), 0)
	step := func() error {
		defer nn.ZeroGrads(model)
		_, err := p.Step(context.Background(), b, squares{})
		return err
	}
	d.ResetPeak()
	if err := step(); err != nil {
		t.Fatal(err)
	}
	m := d.Memory()
	d.SetLimit(m.Peak)
	defer d.SetLimit(0)
	if err := step(); err != nil {
		t.Errorf("the limit is the peak, and yet: %v", err)
	}
	d.SetLimit(m.Peak - 1)
	err := step()
	var e *torch.MemoryError
	if !errors.As(err, &e) || e.Device != d || e.Limit != m.Peak-1 || e.Live+e.Requested <= e.Limit {
		t.Errorf("got %v", err)
	}
	for _, want := range []string{d.String(), "limit ", "live ", "requested ", "aten::", "use more chunks"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	d.SetLimit(0)
	if err := step(); err != nil || d.Memory().Live != m.Live {
		t.Errorf("after the refusal: %v, live %d, want %d", err, d.Memory().Live, m.Live)
	}
	d.SetLimit(m.Live + 20000) // the first layer fits, the second does not
	if _, err := pipe.New(nn.NewSequential(nn.NewLinear(10, 100), nn.NewLinear(100, 100)),
		pipe.Config{Devices: []torch.Device{d}}); !errors.Is(err, torch.ErrOutOfMemory) {
		t.Errorf("a model beyond the limit: got %v", err)
	}
}
