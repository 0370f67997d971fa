package pipe_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"

	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/optim"
	"penstock.example/pipe"
	"penstock.example/torch"
	"pgregory.net/rapid"
)

// everything has what a pipe carries between stages: tuples, a skip, a tied parameter, dropout and
// a batch norm, in five layers of [rows, 4].
func everything() *nn.Sequential {
	first := &tupled{}
	w := first.Param("w", nn.FanIn(4), 4, 4)
	first.Stashes("skip")
	first.f = func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
		y := c.PlainLinear(xs[0], w.Tensor(), nil)
		c.Stash("skip", c.Op("aten::tanh", y))
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
		p := must.Get(pipe.New(model, cfg))(t)
		c := torch.NewCtx(torch.Options{Threads: 1})
		x := normal(7, 4)(c, 0).SetRequiresGrad(true)
		g, h := normal(7, 4)(c, 1), normal(7, 4)(c, 2)
		forward := func() *pipe.Run {
			return must.Get(p.Forward(context.Background(),
				pipe.Batch{Input: pipe.Rows(x), Step: new(int64(3))}))(t)
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
			must.Do(t, forward().Backward(context.Background(), gradient))
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
	c := newCtx(t, torch.Options{})
	x, g, ctx := whole(c, 1, 4, 3), whole(c, 2, 4, 3), context.Background()
	forward := func() *pipe.Run {
		return must.Get(p.Forward(ctx, pipe.Batch{Input: pipe.Rows(x)}))(t)
	}
	closed := "this run is closed; before its one Backward use BackwardRetained"
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	for _, row := range []struct {
		reason string
		do     func(run *pipe.Run) error
		want   string
	}{
		{"twice", func(run *pipe.Run) error { _ = run.Backward(ctx, g); return run.Backward(ctx, g) },
			closed},
		{"retained after the last", func(run *pipe.Run) error {
			_ = run.Backward(ctx, g)
			return run.BackwardRetained(ctx, g)
		}, closed},
		{"after Close", func(run *pipe.Run) error { run.Close(); return run.Backward(ctx, g) }, closed},
		{"after a failure", func(run *pipe.Run) error {
			_ = run.BackwardRetained(cancelled, g)
			return run.Backward(ctx, g)
		}, closed},
		{"no gradient", func(run *pipe.Run) error { return run.Backward(ctx) },
			"run a backward of the loss first"},
		{"too many gradients", func(run *pipe.Run) error { return run.Backward(ctx, g, g) },
			"for 1 outputs; run a backward of the loss first"},
		{"another shape", func(run *pipe.Run) error { return run.Backward(ctx, whole(c, 1, 4, 2)) },
			"gradient 0 is float32[4,2] for output 0, float32[4,3] on cpu"},
		{"integers", func(run *pipe.Run) error { return run.Backward(ctx, c.To(g, torch.Int64)) },
			"gradient 0 is int64[4,3] for"},
		{"another kind of device", func(run *pipe.Run) error { return run.Backward(ctx, meta(c, 4, 3)) },
			"want a floating-point tensor of its shape and kind of device"},
		{"freed", func(run *pipe.Run) error { f := whole(c, 1, 4, 3); f.Free(); return run.Backward(ctx, f) },
			"gradient 0 is freed"},
		{"the weights have changed since", func(run *pipe.Run) error {
			c.MulScalar_(c.Detach(nn.Params(model)[1].Tensor()), 1)
			return run.BackwardRetained(ctx, g)
		}, "modified by an inplace operation"},
	} {
		run := forward()
		err := row.do(run)
		if err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: got %v, want %q", row.reason, err, row.want)
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
	return c.Call("aten::empty.memory_format", shape, torch.Float32, nil, torch.Device{Kind: 14}, nil,
		nil)[0].(*torch.Tensor)
}

// Two losses of one output count once each. The gradient of the first once stayed in the output,
// where that of the second was added to it.
func TestBackwardRetainedTakesTheGradientOfTheOutput(t *testing.T) {
	torchtest.Check(t)
	model := nn.NewSequential(nn.NewLinear(4, 4), nn.NewLinear(4, 4))
	p := started(t, model, pipe.Config{Balance: []int{1, 1}, Chunks: 2})
	c := newCtx(t, torch.Options{Threads: 1})
	run := must.Get(p.Forward(context.Background(), pipe.Batch{Input: pipe.Rows(whole(c, 1, 4, 4))}))(t)
	defer run.Close()
	backward := func(of func(context.Context, ...*torch.Tensor) error) []float32 {
		t.Helper()
		c.SetGrad(true)
		loss := c.Sum(run.Output()[0])
		c.SetGrad(false)
		c.Backward([]*torch.Tensor{loss}, []*torch.Tensor{nil}, false)
		must.Do(t, of(context.Background()))
		return floats(gradient(nn.Params(model)[3]))
	}
	first := backward(run.BackwardRetained)
	// closes the run, as every failure does
	if err := run.BackwardRetained(context.Background()); err == nil {
		t.Error("a backward without a gradient went through")
	}
	run.Close()
	run = must.Get(p.Forward(context.Background(), pipe.Batch{Input: pipe.Rows(whole(c, 1, 4, 4))}))(t)
	nn.ZeroGrads(model)
	backward(run.BackwardRetained)
	for i, g := range backward(run.Backward) { // a bias: the number of rows, for each loss
		if first[i] != 4 || g != 2*first[i] {
			t.Errorf("the gradient of two losses is %v, that of one %v", g, first[i])
		}
	}
	nn.ZeroGrads(model)
}

// updated is a model, cut, with an optimizer.
type updated struct {
	p *pipe.Pipe
	o optim.Optimizer
}

// all is what an update may change: parameters, gradients, state and counts.
func (u updated) all() map[string]string {
	out := traces(u.p, u.o)
	for _, q := range nn.Params(u.p.Model()) {
		out["gradient of "+q.Name] = string(gradient(q))
	}
	return out
}

// tiedTower is a model whose first and last layer share a parameter, with layers of very different
// sizes between them.
func tiedTower(widths []int64) *nn.Sequential {
	m := nn.NewSequential()
	first, last := layer(nil), layer(nil)
	w := first.Param("w", nn.FanIn(4), 4, 4)
	first.f = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.PlainLinear(x, w.Tensor(), nil) }
	v := last.Share("w", w)
	last.f = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.PlainLinear(x, v.Tensor(), nil) }
	m.Add("first", first)
	in := int64(4)
	for i, out := range append(widths, 4) {
		m.Add(fmt.Sprint("l", i), nn.NewLinear(in, out))
		in = out
	}
	return m.Add("last", last)
}

// An update that does not fit the limit of one device changes nothing on any, at whichever
// allocation it is refused; repeated under a higher limit it gives the bits of a run that was never
// refused, on one stage. The gradients are dropped when it has succeeded.
func TestRefusedUpdateChangesNothing(t *testing.T) {
	torchtest.Check(t)
	configs := []optim.Config{{LR: 0.1}, {LR: 0.1, Momentum: 0.9, WeightDecay: 0.01}, {LR: 0.01},
		{LR: 0.01, WeightDecay: 0.1}}
	names := []string{"sgd", "sgd", "adam", "rmsprop"}
	rapid.Check(t, func(t *rapid.T) {
		which := rapid.IntRange(0, len(names)-1).Draw(t, "optimizer")
		widths := rapid.SliceOfN(rapid.Int64Range(1, 20), 2, 3).Draw(t, "widths")
		layers := len(widths) + 3
		cut := rapid.IntRange(1, layers-2).Draw(t, "cut")
		second := rapid.IntRange(1, layers-cut-1).Draw(t, "second")
		shared := rapid.Bool().Draw(t, "stages share a device")
		clip := rapid.SampledFrom([]float64{0, 0.05}).Draw(t, "clip")
		slack := rapid.SampledFrom([]int64{0, 100, 1000}).Draw(t, "slack")
		devices := []torch.Device{torch.CPU(0), torch.CPU(1), torch.CPU(2)}
		if shared {
			devices[2] = devices[0]
		}
		begin := func(cfg pipe.Config) updated {
			cfg.Seed, cfg.Chunks = 5, 2
			p := must.Get(pipe.New(tiedTower(widths), cfg))(t)
			o := must.Get(optim.New(names[which], configs[which]))(t)
			return updated{p, o}
		}
		end := func(u updated) { u.p.Close(); u.o.Close(); nn.Free(u.p.Model()) }
		update := func(u updated) (norm float64, err error) {
			if clip > 0 {
				return u.p.UpdateClipped(context.Background(), u.o, clip)
			}
			return 0, u.p.Update(context.Background(), u.o)
		}
		plain, refused := begin(pipe.Config{}),
			begin(pipe.Config{Balance: []int{cut, second, layers - cut - second}, Devices: devices})
		defer end(plain)
		defer end(refused)
		c := torch.NewCtx(torch.Options{Device: torch.CPU(9), Threads: 1})
		defer c.Close()
		for step := range 2 {
			for _, u := range []updated{plain, refused} {
				if _, err := u.p.Step(context.Background(),
					pipe.Batch{Input: pipe.Rows(normal(5, 4)(c, step)),
						Target: pipe.Rows(normal(5, 4)(c, step+9)),
						Step:   new(int64(step))}, squares{}); err != nil {
					t.Fatal(err)
				}
			}
			want := must.Get(update(plain))(t)
			before, live := refused.all(), liveBytes(3)
			limits := map[torch.Device]int64{}
			for _, d := range refused.p.Devices() {
				limits[d] = d.Memory().Live
			}
			for {
				for d, limit := range limits {
					d.SetLimit(limit)
				}
				norm, err := update(refused)
				for d := range limits {
					d.SetLimit(0)
				}
				if err == nil {
					if norm != want {
						t.Fatalf("a norm of %v, on one stage %v", norm, want)
					}
					break
				}
				var e *pipe.UpdateError
				var memory *torch.MemoryError
				if !errors.As(err, &e) || !errors.As(err, &memory) || e.Half || e.Device != memory.Device ||
					!strings.Contains(err.Error(), "nothing has changed") {
					t.Fatal(err)
				}
				if now := liveBytes(3); now != live {
					t.Fatalf("a refused update leaves %s live, before %s", now, live)
				}
				if !maps.Equal(refused.all(), before) {
					t.Fatalf("step %d: a refused update has changed something: %v", step, err)
				}
				limits[memory.Device] = memory.Live + memory.Requested + slack
			}
			if got := refused.all(); !maps.Equal(got, plain.all()) {
				t.Fatalf("step %d: other bits than on one stage without limits", step)
			}
			for _, q := range nn.Params(refused.p.Model()) {
				if q.Tensor().HasGrad() {
					t.Fatalf("the gradient of %s is left", q.Name)
				}
			}
		}
	})
}

// moody is an optimizer that fails on one device, when it prepares or when it applies.
type moody struct {
	optim.Optimizer
	device torch.Device
	when   string
	how    func()
}

func (m *moody) Prepare(c *torch.Ctx, params []nn.NamedParam) optim.Update {
	if m.when == "prepare" && c.Device() == m.device {
		m.how()
	}
	return moodyUpdate{m.Optimizer.Prepare(c, params), m, c.Device()}
}

type moodyUpdate struct {
	optim.Update
	m      *moody
	device torch.Device
}

func (u moodyUpdate) Apply() {
	if u.m.when == "apply" && u.device == u.m.device {
		u.m.how()
	}
	u.Update.Apply()
}

// However an optimizer fails on one stage: before anything has changed nothing does, and after that
// the error says so. The pipe can be used again, and nothing is left allocated.
func TestFailuresOfAnUpdate(t *testing.T) {
	for _, when := range []string{"prepare", "apply"} {
		for _, way := range ways {
			torchtest.Check(t)
			m := &moody{Optimizer: momentum(t), device: torch.CPU(1)}
			u := updated{started(t, tiedTower([]int64{3, 5}), pipe.Config{Balance: []int{1, 2, 2}}), m}
			c := torch.NewCtx(torch.Options{})
			step := func() {
				t.Helper()
				if _, err := u.p.Step(context.Background(),
					pipe.Batch{Input: pipe.Rows(normal(5, 4)(c, 0)),
						Target: pipe.Rows(normal(5, 4)(c, 1))}, squares{}); err != nil {
					t.Fatal(err)
				}
			}
			step()
			must.Do(t, u.p.Update(context.Background(), u.o))
			step()
			before, live := u.all(), liveBytes(3)
			m.when, m.how = when, way.do
			err := u.p.Update(context.Background(), u.o)
			var e *pipe.UpdateError
			if !errors.As(err, &e) || e.Device != torch.CPU(1) || e.Half != (when == "apply") ||
				!strings.Contains(err.Error(), way.want) || way.is != nil && !way.is(err) {
				t.Errorf("%s, %s: got %v", when, way.name, err)
			}
			if now := liveBytes(3); now != live {
				t.Errorf("%s, %s: %s live, before %s", when, way.name, now, live)
			}
			if after := u.all(); maps.Equal(after, before) != (when == "prepare") {
				t.Errorf("%s, %s: changed: %v", when, way.name, when == "prepare")
			}
			m.when = ""
			if err := u.p.Update(context.Background(), u.o); err != nil {
				t.Errorf("%s, %s: and again: %v", when, way.name, err)
			}
			c.Close()
		}
	}
}

// Updates take turns with runs of other goroutines; nothing hangs, and each finds the model between
// two of them.
func TestUpdatesBesideRuns(t *testing.T) {
	torchtest.Check(t)
	u := updated{started(t, tiedTower([]int64{3, 5}), pipe.Config{Balance: []int{1, 2, 2}, Chunks: 2}),
		momentum(t)}
	var all sync.WaitGroup
	for g := range 3 {
		all.Go(func() {
			c := torch.NewCtx(torch.Options{Device: torch.CPU(9), Threads: 1})
			defer c.Close()
			for range 10 {
				if _, err := u.p.Step(context.Background(),
					pipe.Batch{Input: pipe.Rows(normal(5, 4)(c, g)),
						Target: pipe.Rows(normal(5, 4)(c, 1))}, squares{}); err != nil {
					t.Error(err)
				}
				if err := u.p.Update(context.Background(), u.o); err != nil {
					t.Error(err)
				}
				runtime.Gosched()
			}
		})
	}
	all.Wait()
	nn.ZeroGrads(u.p.Model())
	counts := map[int64]bool{}
	for _, n := range u.o.Steps() {
		counts[n] = true
	}
	if len(counts) != 1 {
		t.Errorf("parameters were updated unequally often: %v", u.o.Steps())
	}
}
