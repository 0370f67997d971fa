package pipe_test

import (
	"bytes"
	"context"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
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
			sum := layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				return c.Op("aten::sum.dim_IntList", x, []int64{2, 3}, false)
			})
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
				p := must.Get(pipe.New(model, cfg))(t)
				if i == 4 { // as between processes
					p.SetLink(wires(false, false))
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
					t.Errorf("%s, seed %d: balance %v on %v differs from one stage", name, seed,
						cfg.Balance, cfg.Devices)
				}
				p.Close()
				c.Close()
				nn.Free(model)
			}
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
	c := newCtx(t, torch.Options{})
	for range 2 {
		if _, err := p.Step(context.Background(),
			pipe.Batch{Input: pipe.Rows(normal(2, 3)(c, 0)),
				Target: pipe.Rows(normal(2, 3)(c, 1))}, squares{}); err != nil {
			t.Error(err)
		}
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
	p := must.Get(pipe.New(model, pipe.Config{}))(t)
	c := newCtx(t, torch.Options{})
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

// sensitiveCount is how many layers sensitive knows.
const sensitiveCount = 16

// sensitive makes a layer of [rows, 2, 6, 6] that libtorch computes by other loops, to other last bits,
// where its input or the gradient of its output has gaps.
func sensitive(k int) nn.Layer {
	return []func() nn.Layer{
		func() nn.Layer { return nn.NewTanh() },
		func() nn.Layer { return nn.NewSiLU() },
		func() nn.Layer { return nn.NewGELU() },
		func() nn.Layer { return nn.NewGELUTanh() },
		func() nn.Layer { return nn.NewBatchNorm2d(2, nn.BatchNormConfig{}) },
		func() nn.Layer { return nn.NewLayerNorm([]int64{6}, nn.NormConfig{}) },
		func() nn.Layer { return nn.NewLayerNorm([]int64{2, 6, 6}, nn.NormConfig{}) },
		func() nn.Layer { return nn.NewSoftmax(3) },
		func() nn.Layer { return nn.NewLogSoftmax(1) },
		func() nn.Layer { return nn.NewGroupNorm(1, 2, nn.NormConfig{}) },
		func() nn.Layer { return nn.NewInstanceNorm2d(2, nn.NormConfig{NoAffine: true}) },
		func() nn.Layer { return nn.NewRMSNorm([]int64{6}, nn.NormConfig{Eps: 1e-3}) },
		func() nn.Layer { return nn.NewSigmoid() },
		func() nn.Layer { return nn.NewLinear(6, 6) },
		func() nn.Layer { return nn.NewConv2d(2, 2, nn.Square(3), nn.ConvConfig{Padding: nn.Square(1)}) },
		func() nn.Layer {
			return nn.NewAvgPool2d(nn.Square(3), nn.PoolConfig{Stride: nn.Square(1), Padding: nn.Square(1)})
		},
	}[k]()
}

// gapCount is how many layers gap knows.
const gapCount = 11

// gap adds layers of [rows, 2, 6, 6] with gaps in the memory of what they give, or of the gradient of
// their input.
func (m *randomNet) gap(k int) {
	beside := func(c *nn.Ctx, x *torch.Tensor, dim int64) *torch.Tensor {
		return c.Cat([]*torch.Tensor{x, c.Detach(c.Op("aten::tanh", x))}, dim)
	}
	part := func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Narrow(beside(c, x, 3), 3, 3, 6) }
	interleaved := func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { // every second column
		wide := c.Reshape(beside(c, x, 3), -1, 2, 6, 6, 2)
		return c.Reshape(c.Narrow(wide, 4, 1, 1), -1, 2, 6, 6)
	}
	one := func(f func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor) { m.add(layer(f)) }
	switch k {
	case 0:
		one(part)
	case 1: // and in another order
		one(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Transpose(part(c, x), 2, 3) })
	case 2:
		one(interleaved)
	case 3: // of channels
		one(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Narrow(beside(c, x, 1), 1, 1, 2) })
	case 4: // one column in all places
		one(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			return c.Expand(c.Narrow(c.Mul(x, x), 3, 2, 1), x.Size(0), 2, 6, 6)
		})
	case 5: // of the gradient alone: that of each part of a Cat
		one(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			both := c.Op("aten::tanh", beside(c, x, 3))
			return c.Mul(c.Narrow(both, 3, 0, 6), c.Narrow(both, 3, 6, 6))
		})
	case 6: // likewise, of what is padded
		one(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			return c.Reshape(c.Narrow(c.Op("aten::constant_pad_nd", x, []int64{1, 1, 0, 0}, 0.5), 3, 1,
				6), -1, 2, 6, 6)
		})
	case 7: // likewise, of two uses
		one(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			both := c.Cat([]*torch.Tensor{x, c.Op("aten::tanh", x), c.Transpose(x, 2, 3)}, 3)
			return c.Narrow(c.Op("aten::silu", both), 3, 5, 6)
		})
	case 8: // of the elements of a tuple, of which one stands there twice
		m.add(tuples(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
			y := part(c, xs[0])
			return []*torch.Tensor{y, interleaved(c, xs[0]), y, xs[0]}
		}))
		m.add(tuples(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
			return []*torch.Tensor{c.Op("aten::silu", xs[0]), part(c, xs[1]), c.Cat([]*torch.Tensor{xs[2],
				xs[3]}, 3)}
		}))
		m.add(tuples(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
			return []*torch.Tensor{c.Add(c.Mul(c.Op("aten::silu", xs[0]), c.Op("aten::silu", xs[1])),
				c.Narrow(c.Op("aten::silu", xs[2]), 3, 2, 6))}
		}))
	case 9, 10: // of a skip, and of its gradient; all in one layer or with others between
		name := fmt.Sprintf("gaps%d", m.Len())
		stash := layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			c.Stash(name, part(c, x))
			return interleaved(c, x)
		})
		stash.Stashes(name)
		m.add(stash)
		for range 2*k - 17 {
			pop := layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				skip := c.Pop(name)
				return c.Add(c.Op("aten::silu", c.Add(x, c.Op("aten::silu", skip))), part(c, skip))
			})
			pop.Pops(name)
			m.add(pop)
			m.add(nn.NewSiLU())
		}
	}
}

// buried is a model in whose second stage, in a wrapper in a wrapper, is the saboteur.
func buried(s *saboteur) *nn.Sequential {
	deep := nn.Checkpointed(nn.NewSequential(nn.NewTanh()).Add("it", s))
	return nn.NewSequential(nn.NewLinear(4, 8), nn.NewTanh()).Add("wrapped",
		nn.Checkpointed(nn.NewSequential(nn.NewLinear(8, 8)).Add("deep", deep))).Add("head", nn.NewLinear(8,
		3))
}

// note is what a layer sees of the run.
type note struct {
	MicroBatch, MicroBatches                       int
	Training, Checkpointing, Recomputing, Recorded bool
}

// A layer knows whether its forward will be repeated, and whether it is a repetition.
func TestLayersSeeTheRun(t *testing.T) {
	torchtest.Check(t)
	var mu sync.Mutex
	var notes []note
	model := nn.NewSequential(nn.NewLinear(2, 2), layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		mu.Lock()
		defer mu.Unlock()
		notes = append(notes, note{c.MicroBatch, c.MicroBatches, c.Training, c.Checkpointing, c.Recomputing,
			c.Grad()})
		return c.Op("aten::tanh", x)
	}))
	defer nn.Free(model)
	forward := func(i int, checkpointing, recorded bool) note {
		return note{i, 2, true, checkpointing, false, recorded}
	}
	again := func(i int) note { return note{i, 2, true, false, true, true} }
	for _, row := range []struct {
		policy pipe.Checkpoint
		want   []note
	}{
		{pipe.Never, []note{forward(0, false, true), forward(1, false, true)}},
		{pipe.Always, []note{forward(0, true, false), forward(1, true, false), again(0), again(1)}},
		{pipe.ExceptLast, []note{forward(0, false, true), forward(1, true, false), again(1)}},
	} {
		p := must.Get(pipe.New(model, pipe.Config{Balance: []int{1, 1}, Chunks: 2,
			Checkpoint: row.policy}))(t)
		c := torch.NewCtx(torch.Options{})
		notes = nil
		b := pipe.Batch{Input: pipe.Rows(normal(3, 2)(c, 0)), Target: pipe.Rows(normal(3, 2)(c, 1))}
		if _, err := p.Step(context.Background(), b, squares{}); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(notes, row.want) {
			t.Errorf("%v: got %+v, want %+v", row.policy, notes, row.want)
		}
		for _, training := range []bool{false, true} {
			notes = nil
			result := must.Get(p.Infer(context.Background(), inMode(b, training)))(t)
			result.Output[0].Free()
			if want := []note{{0, 2, training, false, false, false},
				{1, 2, training, false, false, false}}; !reflect.DeepEqual(notes, want) {
				t.Errorf("inference, training %v: got %+v, want %+v", training, notes, want)
			}
		}
		p.Close()
		c.Close()
		nn.ZeroGrads(model)
	}
}
