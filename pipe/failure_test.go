package pipe_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"penstock.example/internal/stream"
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
	return c.Tanh(x)
}

func sabotaged(s *saboteur) *nn.Sequential {
	return nn.NewSequential(nn.NewLinear(4, 8), nn.NewTanh(), nn.NewSequential(nn.NewLinear(8, 8), s), nn.NewLinear(8, 3))
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
		{"shapes that do not fit", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Mm(x, x) },
			[]string{"aten::mm(float32[", "shapes cannot be multiplied"}, nil},
		{"panic", func(*nn.Ctx, *torch.Tensor) *torch.Tensor { panic("out of luck") },
			[]string{"panic: out of luck"}, nil},
		{"panic with an error", func(*nn.Ctx, *torch.Tensor) *torch.Tensor { panic(boom) }, []string{"panic: boom"}, boom},
		{"nothing returned", func(*nn.Ctx, *torch.Tensor) *torch.Tensor { return nil },
			[]string{"must return tensors", "none"}, nil},
		{"Goexit", func(*nn.Ctx, *torch.Tensor) *torch.Tensor { runtime.Goexit(); return nil },
			[]string{"runtime.Goexit"}, pipe.ErrGoexit},
	}
	for _, way := range ways {
		for microBatch := range 3 {
			for _, recomputing := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%d/recomputing=%v", way.name, microBatch, recomputing), func(t *testing.T) {
					torchtest.Check(t)
					s := &saboteur{how: way.how}
					model := sabotaged(s)
					p := started(t, model, pipe.Config{Balance: []int{1, 3, 1}, Chunks: 3, Checkpoint: pipe.Always})
					c := torch.NewCtx(torch.Options{})
					defer c.Close()
					b := pipe.Batch{Input: pipe.Rows(normal(7, 4)(c, 0)), Target: pipe.Rows(classes(7, 3)(c, 0))}
					loss := nn.CrossEntropy()
					step := func() (pipe.Result, error) {
						nn.ZeroGrads(model)
						return p.Step(context.Background(), b, loss)
					}
					before, err := step()
					if err != nil {
						t.Fatal(err)
					}
					nn.ZeroGrads(model)
					live := liveBytes(3)
					s.when = func(c *nn.Ctx) bool { return c.MicroBatch == microBatch && c.Recomputing == recomputing }
					_, err = step()
					var e *pipe.Error
					if !errors.As(err, &e) {
						t.Fatalf("got %v, want a *pipe.Error", err)
					}
					direction := schedule.Forward
					if recomputing {
						direction = schedule.Recompute
					}
					if e.Stage != 1 || e.MicroBatch != microBatch || e.Layer != "2.1" || e.Direction != direction {
						t.Errorf("got stage %d, micro-batch %d, layer %q, %v", e.Stage, e.MicroBatch, e.Layer, e.Direction)
					}
					for _, want := range append(way.wants,
						fmt.Sprintf("pipe: stage 1, micro-batch %d, layer \"2.1\", %v: ", microBatch, direction)) {
						if !strings.Contains(err.Error(), want) {
							t.Errorf("%q is not in: %v", want, err)
						}
					}
					var panicked *pipe.PanicError
					if found := errors.As(err, &panicked); found != strings.HasPrefix(way.name,
						"panic") || found && !strings.Contains(string(panicked.Stack), "pipe/failure_test.go") {
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
						t.Errorf("after the failure: loss %v, %v; before: %v", after.Loss, err, before.Loss)
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
	c := torch.NewCtx(torch.Options{Device: torch.CPU(2)})
	defer c.Close()
	b := pipe.Batch{Input: pipe.Rows(normal(8, 4)(c, 0))}
	seen := map[string]bool{}
	for extra := int64(0); extra < 40000; extra += 64 {
		run, err := p.Forward(context.Background(), b)
		if err != nil {
			t.Fatal(err)
		}
		g := c.OnesLike(run.Output()[0])
		torch.CPU(1).SetLimit(torch.CPU(1).Memory().Live + extra + 1)
		err = run.Backward(context.Background(), g)
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
		if e.Stage != 1 || e.Direction != schedule.Backward || m.Device != torch.CPU(1) || m.Limit == 0 || m.Requested == 0 {
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

// lostStream is the stream of a GPU on which a kernel has failed: the host hears of it when it waits.
type lostStream struct{ stream.Host }

func (lostStream) Record() stream.Event { return lostEvent{} }

type lostEvent struct{}

func (lostEvent) Synchronize() {
	panic(&torch.Error{Op: "wait for an event", Device: torch.CUDA(0), Message: "CUDA error: device-side assert triggered"})
}
func (lostEvent) Free() {}

// What a kernel finds is reported when the run ends, with what there is to do about it.
func TestFailureOfAKernelHasARemedy(t *testing.T) {
	torchtest.Check(t)
	model := nn.NewSequential(nn.NewLinear(4, 3))
	defer nn.ZeroGrads(model)
	p := started(t, model, pipe.Config{})
	p.SetStreams(func(int) stream.Stream { return lostStream{} }, stream.Host{}, nil)
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	_, err := p.Step(context.Background(), pipe.Batch{Input: pipe.Rows(normal(4, 4)(c, 0)), Target: pipe.Rows(normal(4, 3)(c, 1))}, squares{})
	if !errors.Is(err, torch.ErrDeviceLost) || errors.Is(err, torch.ErrOutOfMemory) || !strings.Contains(err.Error(), "pipe: the work of cpu:0: wait for an event: CUDA error: ") ||
		!strings.Contains(err.Error(), "restart the process") {
		t.Errorf("got %v", err)
	}
}
