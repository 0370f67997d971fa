package pipe_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// ways are all the ways in which a user's Go code can end without a result.
var ways = []struct {
	name string
	do   func()
	want string
	is   func(error) bool
}{
	{"a string", func() { panic("out of luck") }, "panic: out of luck", nil},
	{"an error", func() { panic(errBoom) }, "panic: boom", func(err error) bool { return errors.Is(err, errBoom) }},
	{"a value of its own", func() { panic(struct{ code int }{7}) }, "panic: {7}", nil},
	{"nil", func() { panic(nil) }, "panic called with nil argument", nil},
	{"a runtime error", func() { var m map[string]int; m["a"] = 1 }, "assignment to entry in nil map", isRuntime},
	{"an index", func() { _ = []int{}[len(os.Args)] }, "index out of range", isRuntime},
	{"a nil pointer", func() { var l *nn.Linear; l.Weight = nil }, "nil pointer dereference", isRuntime},
	{"Goexit", runtime.Goexit, "runtime.Goexit", func(err error) bool { return errors.Is(err, pipe.ErrGoexit) }},
}

var errBoom = errors.New("boom")

func isRuntime(err error) bool {
	var e runtime.Error
	return errors.As(err, &e)
}

// badLoss is the mean of the output, until its moment comes.
type badLoss struct {
	mean
	when func(c *nn.Ctx) bool
	how  func()
}

func (l *badLoss) Forward(c *nn.Ctx, y, t *torch.Tensor) *torch.Tensor {
	if l.when != nil && l.when(c) {
		l.how()
	}
	return l.mean.Forward(c, y, t)
}

// However a layer or a loss ends, in forward or in recomputation, in whatever run: an error with
// coordinates comes back, nothing hangs, nothing is held, and the next run is right.
func TestPanics(t *testing.T) {
	for _, way := range ways {
		for _, recomputing := range []bool{false, true} {
			for _, ofLoss := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/recomputing=%v/loss=%v", way.name, recomputing, ofLoss), func(t *testing.T) {
					torchtest.Check(t)
					when := func(c *nn.Ctx) bool { return c.MicroBatch == 1 && c.Recomputing == recomputing }
					loss := &badLoss{how: way.do}
					s := &saboteur{how: func(*nn.Ctx, *torch.Tensor) *torch.Tensor { way.do(); return nil }}
					model := sabotaged(s)
					p := started(t, model, pipe.Config{Balance: []int{1, 3, 1}, Chunks: 3, Checkpoint: pipe.Always})
					c := torch.NewCtx(torch.Options{})
					defer c.Close()
					b := pipe.Batch{Input: pipe.Rows(normal(7, 4)(c, 0)), Target: pipe.Rows(classes(7, 3)(c, 0))}
					before, err := p.Step(context.Background(), b, loss)
					if err != nil {
						t.Fatal(err)
					}
					nn.ZeroGrads(model)
					live := liveBytes(3)
					want := pipe.Error{Stage: 1, MicroBatch: 1, Layer: "2.1", Direction: schedule.Forward}
					if recomputing {
						want.Direction = schedule.Recompute
					}
					if ofLoss {
						want.Stage, want.Layer, loss.when = 2, "loss", when
					} else {
						s.when = when
					}
					runs := []func() error{func() error { _, err := p.Step(context.Background(), b, loss); return err }}
					if !ofLoss && !recomputing {
						runs = append(runs,
							func() error { _, err := p.Forward(context.Background(), b); return err },
							func() error { _, err := p.Infer(context.Background(), b); return err },
							func() error { _, err := eval(p, context.Background(), b.Input[0].Tensor); return err })
					}
					if !ofLoss && recomputing {
						runs = append(runs, func() error {
							run, err := p.Forward(context.Background(), b)
							if err != nil {
								return err
							}
							return run.BackwardRetained(context.Background(), c.OnesLike(run.Output()[0]))
						})
					}
					for i, run := range runs {
						err := run()
						var e *pipe.Error
						if !errors.As(err, &e) || e.Stage != want.Stage || e.MicroBatch != 1 || e.Layer != want.Layer || e.Direction != want.Direction {
							t.Errorf("run %d: got %v, want stage %d, layer %q, %v", i, err, want.Stage, want.Layer, want.Direction)
						}
						if err == nil || !strings.Contains(err.Error(), way.want) || way.is != nil && !way.is(err) {
							t.Errorf("run %d: got %v, want %q", i, err, way.want)
						}
						stackApart(t, err, way.name == "Goexit")
						nn.ZeroGrads(model)
					}
					s.when, loss.when = nil, nil
					c.Close()
					b = pipe.Batch{Input: pipe.Rows(normal(7, 4)(c, 0)), Target: pipe.Rows(classes(7, 3)(c, 0))}
					if got := liveBytes(3); got != live {
						t.Errorf("live bytes %v, before the failure %v", got, live)
					}
					after, err := p.Step(context.Background(), b, loss)
					if err != nil || after.Loss != before.Loss {
						t.Errorf("after the failure: loss %v, %v; before: %v", after.Loss, err, before.Loss)
					}
				})
			}
		}
	}
}

// stackApart checks that an error is one line, and that the stack of a panic is in a field.
func stackApart(t *testing.T, err error, goexit bool) {
	t.Helper()
	var p *pipe.PanicError
	if found := errors.As(err, &p); found == goexit || found && !strings.Contains(string(p.Stack), "pipe/panic_test.go") {
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
			stackApart(t, err, way.name == "Goexit")
			if err != nil && !strings.Contains(err.Error(), "pipe: stage 1: ") {
				t.Errorf("the stage is not in: %v", err)
			}
			if !done[0] || done[1] || !done[2] {
				t.Errorf("stages done: %v, want all but 1", done)
			}
			if err := p.OnStages(context.Background(), func(int, *torch.Ctx) error { return nil }); err != nil {
				t.Errorf("the workers are of no use any more: %v", err)
			}
		})
	}
}

// A failure inside autograd, where no Go code runs: the error names the node, and the layer that
// recorded it.
func TestFailureOfAnOperatorInBackward(t *testing.T) {
	torchtest.Check(t)
	on := true
	model := nn.NewSequential(nn.NewLinear(3, 3),
		nn.NewSequential(nn.NewLinear(3, 3), layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			y := c.Tanh(x) // which its backward needs
			if on && c.MicroBatch == 1 {
				c.NoGrad(func() { c.AddScalar_(c.Detach(y), 1) })
			}
			return y
		})), nn.NewLinear(3, 3))
	for _, policy := range policies {
		p := started(t, model, pipe.Config{Balance: []int{1, 2, 1}, Chunks: 3, Checkpoint: policy})
		c := torch.NewCtx(torch.Options{})
		b := pipe.Batch{Input: pipe.Rows(normal(6, 3)(c, 0)), Target: pipe.Rows(normal(6, 3)(c, 1))}
		on = true
		live := liveBytes(3)
		_, err := p.Step(context.Background(), b, squares{})
		var e *pipe.Error
		var op *torch.Error
		if !errors.As(err, &e) || !errors.As(err,
			&op) || e.Stage != 1 || e.MicroBatch != 1 || e.Direction != schedule.Backward || e.Layer != "1.1" || !strings.Contains(op.Op, "Tanh") || !strings.Contains(op.Message, "inplace operation") {
			t.Errorf("%v: got %v", policy, err)
		}
		nn.ZeroGrads(model)
		if got := liveBytes(3); got != live {
			t.Errorf("%v: live bytes %s, before the failure %s", policy, got, live)
		}
		on = false
		if _, err := p.Step(context.Background(), b, squares{}); err != nil {
			t.Errorf("%v: after the failure: %v", policy, err)
		}
		nn.ZeroGrads(model)
		c.Close()
		p.Close()
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
	model := nn.NewSequential(&saboteur{when: note, how: stop}, &saboteur{when: note, how: stop}, &saboteur{when: note, how: stop})
	p := started(t, model, pipe.Config{Balance: []int{1, 1, 1}, Chunks: 4, Devices: make([]torch.Device, 3)})
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	if _, err := eval(p, context.Background(), normal(4, 2)(c, 0)); err == nil {
		t.Fatal("no failure")
	}
	if got, want := fmt.Sprint(ran), "[0F0 1F0 0F1 2F0 1F1]"; got != want {
		t.Errorf("ran %s, want %s", got, want)
	}
}
