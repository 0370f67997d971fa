package pipe_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// saboteur passes its input through, until its moment comes.
type saboteur struct {
	nn.Base
	when func(c *nn.Ctx) bool
	how  func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor
}

func (s *saboteur) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	if s.when != nil && s.when(c) {
		return s.how(c, x)
	}
	return c.Op("aten::tanh", x)
}

func sabotaged(s *saboteur) *nn.Sequential {
	return nn.NewSequential(nn.NewLinear(4, 8), nn.NewTanh(), nn.NewSequential(nn.NewLinear(8, 8), s),
		nn.NewLinear(8, 3))
}

// Whatever fails, wherever it fails: one error with coordinates, every worker idle, nothing held,
// and the pipe works as before.
func TestFailureAtEveryPoint(t *testing.T) {
	boom := errors.New("boom")
	ways := []struct {
		name  string
		how   func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor
		wants []string
		is    error
	}{
		{"shapes that do not fit", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			return c.Op("aten::mm", x, x)
		},
			[]string{"aten::mm(float32[", "shapes cannot be multiplied"}, nil},
		{"panic", func(*nn.Ctx, *torch.Tensor) *torch.Tensor { panic("out of luck") },
			[]string{"panic: out of luck"}, nil},
		{"panic with an error", func(*nn.Ctx, *torch.Tensor) *torch.Tensor { panic(boom) },
			[]string{"panic: boom"}, boom},
		{"nothing returned", func(*nn.Ctx, *torch.Tensor) *torch.Tensor { return nil },
			[]string{"must return tensors", "none"}, nil},
	}
	for _, way := range ways {
		for microBatch := range 3 {
			for _, recomputing := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%d/recomputing=%v", way.name, microBatch, recomputing),
					func(t *testing.T) {
						torchtest.Check(t)
						s := &saboteur{how: way.how}
						model := sabotaged(s)
						p := started(t, model,
							pipe.Config{Balance: []int{1, 3, 1}, Chunks: 3, Checkpoint: pipe.Always})
						c := torch.NewCtx(torch.Options{})
						defer c.Close()
						b := pipe.Batch{Input: pipe.Rows(normal(7, 4)(c, 0)),
							Target: pipe.Rows(classes(7, 3)(c, 0))}
						loss := nn.CrossEntropy()
						step := func() (pipe.Result, error) {
							nn.ZeroGrads(model)
							return p.Step(context.Background(), b, loss)
						}
						before := must.Get(step())(t)
						nn.ZeroGrads(model)
						live := liveBytes(3)
						s.when = func(c *nn.Ctx) bool {
							return c.MicroBatch == microBatch &&
								c.Recomputing == recomputing
						}
						_, err := step()
						var e *pipe.Error
						if !errors.As(err, &e) {
							t.Fatalf("got %v, want a *pipe.Error", err)
						}
						direction := schedule.Forward
						if recomputing {
							direction = schedule.Recompute
						}
						if e.Stage != 1 || e.MicroBatch != microBatch || e.Layer != "2.1" ||
							e.Direction != direction {
							t.Errorf("got stage %d, micro-batch %d, layer %q, %v", e.Stage, e.MicroBatch,
								e.Layer, e.Direction)
						}
						for _, want := range append(way.wants,
							fmt.Sprintf("pipe: stage 1, micro-batch %d, layer \"2.1\", %v: ", microBatch,
								direction)) {
							if !strings.Contains(err.Error(), want) {
								t.Errorf("%q is not in: %v", want, err)
							}
						}
						var panicked *pipe.PanicError
						if found := errors.As(err, &panicked); found != strings.HasPrefix(way.name,
							"panic") || found &&
							!strings.Contains(string(panicked.Stack), "pipe/failure_test.go") {
							t.Errorf("the stack of the panic is not in %+v", panicked)
						}
						if way.is != nil && !errors.Is(err, way.is) {
							t.Errorf("errors.Is does not find %v", way.is)
						}
						nn.ZeroGrads(model)
						if got := liveBytes(3); got != live {
							t.Errorf("live bytes %v, before the failure %v", got, live)
						}
						s.when = nil
						after, err := step()
						if err != nil || after.Loss != before.Loss {
							t.Errorf("after the failure: loss %v, %v; before: %v", after.Loss, err,
								before.Loss)
						}
					})
			}
		}
	}
}

// liveBytes are the live bytes of the first n CPU devices.
func liveBytes(n int) string {
	var out []int64
	for _, d := range cpus(n) {
		out = append(out, d.Memory().Live)
	}
	return fmt.Sprint(out)
}

// The layer of a failure in backward is found by the autograd node that failed.
func TestFailureInBackwardNamesTheLayer(t *testing.T) {
	torchtest.Check(t)
	model := nn.NewSequential(nn.NewLinear(4, 4), nn.NewLinear(4, 64), nn.NewTanh(),
		nn.NewSequential(nn.NewLinear(64, 2), nn.NewTanh()))
	p := started(t, model, pipe.Config{Balance: []int{1, 4}, Checkpoint: pipe.Never})
	c := newCtx(t, torch.Options{Device: torch.CPU(2)})
	b := pipe.Batch{Input: pipe.Rows(normal(8, 4)(c, 0))}
	seen := map[string]bool{}
	for extra := int64(0); extra < 40000; extra += 64 {
		run := must.Get(p.Forward(context.Background(), b))(t)
		g := c.Op("aten::ones_like", run.Output()[0])
		torch.CPU(1).SetLimit(torch.CPU(1).Memory().Live + extra + 1)
		err := run.Backward(context.Background(), g)
		torch.CPU(1).SetLimit(0)
		nn.ZeroGrads(model)
		if err == nil {
			break
		}
		var e *pipe.Error
		var m *torch.MemoryError
		if !errors.As(err, &e) || !errors.As(err, &m) || !errors.Is(err, torch.ErrOutOfMemory) {
			t.Fatalf("got %v, want out of memory with coordinates", err)
		}
		if e.Stage != 1 || e.Direction != schedule.Backward || m.Device != torch.CPU(1) || m.Limit == 0 ||
			m.Requested == 0 {
			t.Errorf("got %v", err)
		}
		if !strings.Contains(err.Error(), "use more chunks") {
			t.Errorf("no remedy in: %v", err)
		}
		seen[e.Layer] = true
	}
	for _, layer := range []string{"3.1", "3.0", "2"} {
		if !seen[layer] {
			t.Errorf("no failure was attributed to layer %q; seen %v", layer, seen)
		}
	}
}

// ways are all the ways in which a user's Go code can end without a result.
var ways = []struct {
	name string
	do   func()
	want string
	is   func(error) bool
}{
	{"a string", func() { panic("out of luck") }, "panic: out of luck", nil},
	{"an error", func() { panic(errBoom) }, "panic: boom",
		func(err error) bool { return errors.Is(err, errBoom) }},
	{"nil", func() { panic(nil) }, "panic called with nil argument", nil},
	{"a runtime error", func() { var m map[string]int; m["a"] = 1 }, "assignment to entry in nil map",
		isRuntime},
}

var errBoom = errors.New("boom")

func isRuntime(err error) bool {
	var e runtime.Error
	return errors.As(err, &e)
}

// stackApart checks that an error is one line, and that the stack of a panic is in a field.
func stackApart(t *testing.T, err error) {
	t.Helper()
	var p *pipe.PanicError
	if !errors.As(err, &p) || !strings.Contains(string(p.Stack), "pipe/failure_test.go") {
		t.Errorf("the stack of %v does not show the panic: %v", err, p)
	}
	if err != nil && strings.Contains(err.Error(), "\n") {
		t.Errorf("an error of several lines: %v", err)
	}
}

// The same for what runs on the stages' workers beside runs.
func TestPanicsOnStages(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			torchtest.Check(t)
			model := small()
			p := started(t, model, pipe.Config{Balance: []int{1, 1, 2}})
			done := make([]bool, 3)
			err := p.OnStages(context.Background(), func(stage int, c *torch.Ctx) error {
				c.Ones(torch.Float32, 100)
				if stage == 1 {
					way.do()
				}
				done[stage] = true
				return nil
			})
			if err == nil || !strings.Contains(err.Error(), way.want) || way.is != nil && !way.is(err) {
				t.Errorf("got %v, want %q", err, way.want)
			}
			stackApart(t, err)
			if !strings.Contains(fmt.Sprint(err), "pipe: stage 1: ") {
				t.Errorf("the stage is not in: %v", err)
			}
			if !done[0] || done[1] || !done[2] {
				t.Errorf("stages done: %v, want all but 1", done)
			}
			if err := p.OnStages(context.Background(),
				func(int, *torch.Ctx) error { return nil }); err != nil {
				t.Errorf("the workers are of no use any more: %v", err)
			}
		})
	}
}

// After a failure no action starts: with all stages on one device, whose worker has one order,
// exactly those before it have run.
func TestNothingStartsAfterAFailure(t *testing.T) {
	torchtest.Check(t)
	var ran []string
	note := func(c *nn.Ctx) bool {
		ran = append(ran, fmt.Sprint(c.Path(), "F", c.MicroBatch))
		return c.Path() == "1" && c.MicroBatch == 1
	}
	stop := func(*nn.Ctx, *torch.Tensor) *torch.Tensor { panic("stop") }
	model := nn.NewSequential(&saboteur{when: note, how: stop}, &saboteur{when: note, how: stop},
		&saboteur{when: note, how: stop})
	p := started(t, model, pipe.Config{Balance: []int{1, 1, 1}, Chunks: 4, Devices: make([]torch.Device, 3)})
	c := newCtx(t, torch.Options{})
	if _, err := eval(p, context.Background(), normal(4, 2)(c, 0)); err == nil {
		t.Fatal("no failure")
	}
	if got, want := fmt.Sprint(ran), "[0F0 1F0 0F1 2F0 1F1]"; got != want {
		t.Errorf("ran %s, want %s", got, want)
	}
}

// A tuple of which the second tensor does not fit on the receiving stage's device, in either
// direction, leaves nothing allocated: not the first tensor, nor what still waited on the link.
func TestReceiveThatDoesNotFit(t *testing.T) {
	torchtest.Check(t)
	const rows, width = 4, 1 << 14
	for _, full := range []int{0, 1} {
		var limit func()
		pair := tuples(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
			return []*torch.Tensor{c.MulScalar(xs[0], 2),
				c.Mul(c.Op("aten::sum.dim_IntList", xs[0], []int64{1}, true),
					c.Ones(torch.Float32, 1, width))}
		})
		join := tuples(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
			limit()
			return []*torch.Tensor{c.Add(c.Op("aten::sum.dim_IntList", xs[0], []int64{1}, true),
				c.Op("aten::sum.dim_IntList", xs[1], []int64{1}, true))}
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
			return c.Op("aten::tanh", x)
		})
		model := nn.NewSequential(nn.NewLinear(4, 4), middle, nn.NewLinear(4, 3))
		p := started(t, model, pipe.Config{Balance: []int{1, 1, 1}, Chunks: 3})
		p.SetLink(wires(row.meets, row.delays))
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
