package pipe_test

import (
	"bytes"
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// everything has what a pipe carries between stages: tuples, a skip, a tied parameter, dropout and
// a batch norm, in five layers of [rows, 4].
func everything() *nn.Sequential {
	first := &tupled{}
	w := first.Param("w", nn.FanIn(4), 4, 4)
	first.Stashes("skip")
	first.f = func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
		y := c.PlainLinear(xs[0], w.Tensor(), nil)
		c.Stash("skip", c.Tanh(y))
		return []*torch.Tensor{c.Argmax(y, 1), y}
	}
	w2 := &call{}
	w2.p = w2.Share("w", w)
	w2.Pops("skip")
	w2.f = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		return c.PlainLinear(c.Mul(x, c.Pop("skip")), w2.p.Tensor(), nil)
	}
	return nn.NewSequential(nn.Tuple(first, first.ForwardTuple),
		tuples(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor { return xs[1:] }),
		nn.NewSequential(nn.NewDropout(0.3), nn.NewBatchNorm1d(4, nn.BatchNormConfig{})), w2)
}

// BackwardRetained and a Backward after it give, bit for bit, what two runs give, whatever is
// recomputed; and on numbers that are exact, twice the gradient.
func TestBackwardRetained(t *testing.T) {
	torchtest.Check(t)
	for _, cfg := range configs(5, 3) {
		model := everything()
		p, err := pipe.New(model, cfg)
		if err != nil {
			t.Fatal(err)
		}
		c := torch.NewCtx(torch.Options{Threads: 1})
		x := normal(7, 4)(c, 0).SetRequiresGrad(true)
		g, h := normal(7, 4)(c, 1), normal(7, 4)(c, 2)
		forward := func() *pipe.Run {
			run, err := p.Forward(context.Background(), pipe.Batch{Input: pipe.Rows(x), Step: 3})
			if err != nil {
				t.Fatal(err)
			}
			return run
		}
		record := func() map[string][]byte {
			out := map[string][]byte{"input": torch.Bytes(c.GradOf(x))}
			for _, q := range nn.Params(model) {
				out[q.Name] = gradient(q)
			}
			nn.ZeroGrads(model)
			x.SetGradOf(nil)
			return out
		}
		for _, gradient := range []*torch.Tensor{g, h} {
			if err := forward().Backward(context.Background(), gradient); err != nil {
				t.Fatal(err)
			}
		}
		want := record()
		buffers := buffersOf(model)
		run := forward()
		moved := buffersOf(model)
		if reflect.DeepEqual(buffers, moved) {
			t.Fatal("a forward moves no running statistics")
		}
		if err := run.BackwardRetained(context.Background(), g); err != nil {
			t.Fatalf("%s: %v", named(cfg), err)
		}
		if err := run.Backward(context.Background(), h); err != nil {
			t.Fatalf("%s, the second time: %v", named(cfg), err)
		}
		got := record()
		for name := range want {
			if !bytes.Equal(got[name], want[name]) {
				t.Errorf("%s: the gradient of %s differs from that of two runs", named(cfg), name)
			}
		}
		if !reflect.DeepEqual(buffersOf(model), moved) {
			t.Errorf("%s: repeated recomputations moved running statistics", named(cfg))
		}
		p.Close()
		nn.Free(model)
		c.Close()
	}
}

func buffersOf(model nn.Module) map[string][]byte {
	out := map[string][]byte{}
	for _, b := range nn.Buffers(model) {
		out[b.Name] = torch.Bytes(b.Tensor())
	}
	return out
}

// exact is a network whose numbers are whole: three linear layers of weights from -2 to 2.
func exact() *nn.Sequential {
	s := nn.NewSequential()
	for i := range 3 {
		l := &call{}
		l.p = l.Param("weight", wholly, 3, 3)
		l.f = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.PlainLinear(x, l.p.Tensor(), nil) }
		s.Add(fmt.Sprint(i), l)
	}
	return s
}

// A run that has no backward left says so, and one that cannot have another fails with coordinates
// and holds nothing.
func TestBackwardThatCannotBe(t *testing.T) {
	torchtest.Check(t)
	model := exact()
	p := started(t, model, pipe.Config{Balance: []int{1, 2}, Chunks: 2, Checkpoint: pipe.Never})
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	x, g, ctx := whole(c, 1, 4, 3), whole(c, 2, 4, 3), context.Background()
	forward := func() *pipe.Run {
		run, err := p.Forward(ctx, pipe.Batch{Input: pipe.Rows(x)})
		if err != nil {
			t.Fatal(err)
		}
		return run
	}
	closed := "this run is closed; a run has one Backward, which frees it, and BackwardRetained before that"
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	for _, row := range []struct {
		reason string
		do     func(run *pipe.Run) error
		want   []string
	}{
		{"twice", func(run *pipe.Run) error { _ = run.Backward(ctx, g); return run.Backward(ctx, g) }, []string{closed}},
		{"retained after the last", func(run *pipe.Run) error { _ = run.Backward(ctx, g); return run.BackwardRetained(ctx, g) }, []string{closed}},
		{"after Close", func(run *pipe.Run) error { run.Close(); return run.Backward(ctx, g) }, []string{closed}},
		{"after a failure", func(run *pipe.Run) error { _ = run.BackwardRetained(cancelled, g); return run.Backward(ctx, g) }, []string{closed}},
		{"no gradient", func(run *pipe.Run) error { return run.Backward(ctx) },
			[]string{"the output has no gradient; run a backward of the loss first, or give one"}},
		{"too many gradients", func(run *pipe.Run) error { return run.Backward(ctx, g, g) },
			[]string{"2 gradients for 1 outputs; give one for each, nil where there is none"}},
		{"another shape", func(run *pipe.Run) error { return run.Backward(ctx, whole(c, 1, 4, 2)) },
			[]string{"gradient 0 is float32[4,2]", "output 0, float32[4,3]"}},
		{"integers", func(run *pipe.Run) error { return run.Backward(ctx, c.To(g, torch.Int64)) },
			[]string{"gradient 0 is int64[4,3]", "output 0, float32[4,3]"}},
		{"another kind of device", func(run *pipe.Run) error { return run.Backward(ctx, meta(c, 4, 3)) },
			[]string{"float32[4,3] on meta", "float32[4,3] on cpu"}},
		{"freed", func(run *pipe.Run) error { f := whole(c, 1, 4, 3); f.Free(); return run.Backward(ctx, f) },
			[]string{"gradient 0 was freed; keep it until Backward returns"}},
		{"the weights have changed since", func(run *pipe.Run) error {
			c.MulScalar_(c.Detach(nn.Params(model)[1].Tensor()), 1)
			return run.BackwardRetained(ctx, g)
		}, []string{"pipe: stage 1, micro-batch 0", "backward", "modified by an inplace operation"}},
	} {
		run := forward()
		err := row.do(run)
		for _, want := range row.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want %q", row.reason, err, want)
			}
		}
		run.Close()
		nn.ZeroGrads(model)
	}
	if err := forward().Backward(ctx, g); err != nil {
		t.Errorf("the pipe is of no use any more: %v", err)
	}
}

// meta is a tensor on libtorch's device without memory: a kind that no stage has.
func meta(c *torch.Ctx, shape ...int64) *torch.Tensor {
	return c.Call("aten::empty", "memory_format", shape, torch.Float32, nil, torch.Device{Kind: 14}, nil, nil)[0].(*torch.Tensor)
}
