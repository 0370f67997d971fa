package pipe_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"penstock.example/internal/link"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// call is a layer made of a function.
type call struct {
	nn.Base
	p *nn.Param // that f uses, or nil
	f func(*nn.Ctx, *torch.Tensor) *torch.Tensor
}

func (l *call) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return l.f(c, x) }

func layer(f func(*nn.Ctx, *torch.Tensor) *torch.Tensor) *call { return &call{f: f} }

// Autograd copies a gradient into the layout of the leaf that it arrives at, and a copy to another
// device makes an expanded one dense. Either changes the order in which the operator before the cut
// sums, so gradients once depended on the balance when a layer next to the cut transposed or
// summed.
func TestGradientsCrossACutWithTheirLayout(t *testing.T) {
	torchtest.Check(t)
	head := func() []nn.Layer {
		return []nn.Layer{nn.NewLinear(6, 6), nn.NewBatchNorm2d(2, nn.BatchNormConfig{})}
	}
	for name, build := range map[string]func() *nn.Sequential{
		"transpose": func() *nn.Sequential {
			transpose := layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Transpose(x, 2, 3) })
			return nn.NewSequential(append(head(), transpose, nn.NewFlatten(1, -1), nn.NewLinear(72, 3))...)
		},
		"sum": func() *nn.Sequential {
			sum := layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.SumDim(x, []int64{2, 3}, false) })
			return nn.NewSequential(append(head(), sum, nn.NewLinear(2, 3))...)
		},
	} {
		for seed := range uint64(5) {
			var want []byte
			n := len(build().Layers())
			for i, cfg := range []pipe.Config{
				{}, {Balance: []int{2, n - 2}}, {Balance: []int{2, n - 2},
					Devices: []torch.Device{torch.CPU(0), torch.CPU(0)}}, {Balance: []int{2, 1, n - 3}},
				{Balance: []int{2, 1, n - 3}},
			} {
				model := build()
				cfg.Seed = seed
				p, err := pipe.New(model, cfg)
				if err != nil {
					t.Fatal(err)
				}
				if i == 4 { // as between processes
					p.SetLink(func(worker []int) link.Link { return newWire(false, false, worker) })
				}
				c := torch.NewCtx(torch.Options{Threads: 1})
				if _, err := p.Step(context.Background(),
					pipe.Batch{Input: pipe.Rows(normal(7, 2, 6, 6)(c, int(seed))),
						Target: pipe.Rows(normal(7, 3)(c, 1))}, squares{}); err != nil {
					t.Fatal(err)
				}
				got := gradient(nn.Params(model)[0])
				if want == nil {
					want = got
				} else if !bytes.Equal(got, want) {
					t.Errorf("%s, seed %d: balance %v on %v differs from one stage", name, seed, cfg.Balance, cfg.Devices)
				}
				p.Close()
				c.Close()
				nn.Free(model)
			}
		}
	}
}

// Float16 activations once lost the gradients of all stages before, because only three types were
// known to carry gradients.
func TestHalfPrecisionActivationsCarryGradients(t *testing.T) {
	torchtest.Check(t)
	const float16 = torch.DType(5)
	to := func(d torch.DType) nn.Layer {
		return layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.To(x, d) })
	}
	model := nn.NewSequential(nn.NewLinear(3, 3), to(float16), to(torch.Float32), nn.NewLinear(3, 3))
	p := started(t, model, pipe.Config{Balance: []int{2, 2}})
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	if _, err := p.Step(context.Background(),
		pipe.Batch{Input: pipe.Rows(normal(2, 3)(c, 0)), Target: pipe.Rows(normal(2, 3)(c, 1))}, squares{}); err != nil {
		t.Fatal(err)
	}
	for _, q := range nn.Params(model) {
		if !q.Tensor().HasGrad() {
			t.Errorf("%s has no gradient", q.Name)
		}
	}
}

// A layer that overwrites its input may come after layers that pass theirs through, at any
// balance, in training and in evaluation.
func TestInPlaceBehindPassThrough(t *testing.T) {
	torchtest.Check(t)
	for _, first := range []func() nn.Layer{
		func() nn.Layer { return nn.NewDropout(0.5) }, func() nn.Layer { return nn.NewIdentity() }, func() nn.Layer { return nn.NewFlatten(1, -1) },
	} {
		for _, balance := range [][]int{{4}, {1, 3}, {1, 1, 2}} {
			model := nn.NewSequential(nn.NewLinear(3, 3), first(), nn.NewReLUInPlace(), nn.NewLinear(3, 3))
			p, err := pipe.New(model, pipe.Config{Balance: balance})
			if err != nil {
				t.Fatal(err)
			}
			c := torch.NewCtx(torch.Options{})
			x := normal(2, 3)(c, 0)
			before := torch.Bytes(x)
			if _, err := p.Step(context.Background(), pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(x)},
				squares{}); err != nil {
				t.Errorf("%v: %v", balance, err)
			}
			y, err := eval(p, context.Background(), x)
			if err != nil {
				t.Errorf("%v: %v", balance, err)
			}
			y.Free()
			if !bytes.Equal(torch.Bytes(x), before) {
				t.Errorf("%v: the batch was overwritten", balance)
			}
			p.Close()
			c.Close()
			nn.Free(model)
		}
	}
}

type constant struct {
	nn.Base
	w *nn.Param
}

func (l *constant) Forward(*nn.Ctx, *torch.Tensor) *torch.Tensor { return l.w.Tensor() }

// What a layer returns may be the model's own: the state of the micro-batch must not free it.
func TestLayerMayReturnAParameter(t *testing.T) {
	torchtest.Check(t)
	l := &constant{}
	l.w = l.Param("w", nn.Ones, 2, 3)
	model := nn.NewSequential(nn.NewTanh(), l, nn.NewLinear(3, 3))
	p := started(t, model, pipe.Config{Balance: []int{2, 1}})
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	for range 2 {
		if _, err := p.Step(context.Background(),
			pipe.Batch{Input: pipe.Rows(normal(2, 3)(c, 0)), Target: pipe.Rows(normal(2, 3)(c, 1))}, squares{}); err != nil {
			t.Error(err)
		}
	}
}

// A backward that fails half way leaves work in the engine's queue, with its tensors. They once
// stayed on the account until the worker's next backward.
func TestFailedBackwardHoldsNothing(t *testing.T) {
	torchtest.Check(t)
	d := torch.CPU(5)
	model := nn.NewSequential(nn.NewConv2d(3, 8, nn.Square(3), nn.Conv2dConfig{}), nn.NewBasicBlock(8, 16, 2),
		nn.NewBasicBlock(16, 32, 2))
	p := started(t, model, pipe.Config{Devices: []torch.Device{d}, Checkpoint: pipe.Never})
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	x := normal(4, 3, 17, 17)(c, 0)
	step := func() error {
		_, err := p.Step(context.Background(), pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(x)}, mean{})
		nn.ZeroGrads(model)
		return err
	}
	base := d.Memory().Live
	d.ResetPeak()
	if err := step(); err != nil {
		t.Fatal(err)
	}
	failures := 0
	for limit, peak := base+1, d.Memory().Peak; limit < peak; limit += 1777 {
		d.SetLimit(limit)
		err := step()
		d.SetLimit(0)
		var e *pipe.Error
		if errors.As(err, &e) && e.Direction == schedule.Backward {
			failures++
		}
		if got := d.Memory().Live; got != base {
			t.Errorf("limit %d: %d bytes more are live: %v", limit, got-base, err)
		}
	}
	if failures == 0 {
		t.Error("no limit made a backward fail")
	}
}

// Close waits for what was started, to its end: an evaluation has its outputs gathered by a second
// job.
func TestCloseWaitsForRuns(t *testing.T) {
	torchtest.Check(t)
	entered := make(chan bool)
	model := nn.NewSequential(layer(func(_ *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		entered <- true
		time.Sleep(20 * time.Millisecond)
		return x
	}))
	p, err := pipe.New(model, pipe.Config{})
	if err != nil {
		t.Fatal(err)
	}
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	x := normal(2, 3)(c, 0)
	done := make(chan error)
	go func() {
		y, err := eval(p, context.Background(), x)
		y.Free()
		done <- err
	}()
	<-entered
	p.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestInputMustBeALeaf(t *testing.T) {
	torchtest.Check(t)
	model := nn.NewSequential(nn.NewLinear(3, 2), nn.NewTanh())
	p := started(t, model, pipe.Config{Balance: []int{1, 1}, Chunks: 2})
	c := torch.NewCtx(torch.Options{Grad: true, Threads: 1})
	defer c.Close()
	leaf := normal(4, 3)(c, 0).SetRequiresGrad(true)
	defer leaf.SetGradOf(nil)
	if _, err := p.Step(context.Background(),
		pipe.Batch{Input: pipe.Rows(c.Tanh(leaf)),
			Target: pipe.Rows(normal(4, 2)(c, 1))}, squares{}); err == nil || !strings.Contains(err.Error(), "detach it") {
		t.Errorf("got %v", err)
	}
	if _, err := p.Step(context.Background(),
		pipe.Batch{Input: pipe.Rows(leaf), Target: pipe.Rows(normal(4, 2)(c, 1))}, squares{}); err != nil {
		t.Fatal(err)
	}
	c.SetGrad(false)
	for i, g := range torch.Values[float32](c.GradOf(leaf)) {
		if g == 0 {
			t.Errorf("element %d of the input's gradient is zero: a micro-batch is missing", i)
		}
	}
}
