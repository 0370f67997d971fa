package pipe_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/schedule"
	"penstock.example/torch"
)

func small() *nn.Sequential {
	return nn.NewSequential(nn.NewLinear(4, 8), nn.NewTanh(), nn.NewDropout(0.5), nn.NewLinear(8, 3))
}

// Forward and Backward with a loss of the user's own give the gradients that Step gives.
func TestForwardAndBackwardAgreeWithStep(t *testing.T) {
	torchtest.Check(t)
	for _, policy := range policies {
		for _, balance := range [][]int{{4}, {1, 3}, {1, 1, 2}} {
			model := small()
			p, err := pipe.New(model, pipe.Config{Balance: balance, Chunks: 3, Checkpoint: policy, Seed: 3})
			if err != nil {
				t.Fatal(err)
			}
			c := torch.NewCtx(torch.Options{Threads: 1})
			b := pipe.Batch{Input: pipe.Rows(normal(9, 4)(c, 0)), Target: pipe.Rows(normal(9, 3)(c, 1)), Step: 4}
			sum := nn.MSE().Sum()
			result, err := p.Step(context.Background(), b, sum)
			if err != nil {
				t.Fatal(err)
			}
			want := snapshot(model, nil, gradient)
			nn.ZeroGrads(model)
			run, err := p.Forward(context.Background(), b)
			if err != nil {
				t.Fatal(err)
			}
			if run.MicroBatches() != 3 || fmt.Sprint(run.Output()[0].Shape()) != "[9 3]" {
				t.Errorf("%d micro-batches, output %v", run.MicroBatches(), run.Output()[0])
			}
			c.SetGrad(true)
			loss := c.MSE(run.Output()[0], b.Target[0].Tensor, torch.ReduceSum)
			if got := float64(torch.Item[float32](loss)); got-result.Loss > 1e-4 || result.Loss-got > 1e-4 {
				t.Errorf("loss %v, Step says %v", got, result.Loss)
			}
			c.Backward([]*torch.Tensor{loss}, []*torch.Tensor{nil}, false)
			if err := run.Backward(context.Background()); err != nil {
				t.Fatal(err)
			}
			if d := want.differs(snapshot(model, nil, gradient)); d != "" {
				t.Errorf("%v %v: %s differs from Step's", policy, balance, d)
			}
			if err := run.Backward(context.Background()); err == nil {
				t.Error("a second backward went through")
			}
			c.Close()
			p.Close()
			nn.Free(model)
		}
	}
}

func TestForwardWithoutBackwardHoldsNothingAfterClose(t *testing.T) {
	torchtest.Check(t)
	model := small()
	p := started(t, model, pipe.Config{Balance: []int{2, 2}, Chunks: 2})
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	run, err := p.Forward(context.Background(), pipe.Batch{Input: pipe.Rows(normal(4, 4)(c, 0))})
	if err != nil {
		t.Fatal(err)
	}
	if err := run.Backward(context.Background()); err == nil || !strings.Contains(err.Error(), "no gradient") {
		t.Errorf("got %v", err)
	}
	run, err = p.Forward(context.Background(), pipe.Batch{Input: pipe.Rows(normal(4, 4)(c, 0))})
	if err != nil {
		t.Fatal(err)
	}
	if err := run.Backward(context.Background(),
		c.Ones(torch.Float32, 2, 3)); err == nil || !strings.Contains(err.Error(), "[4,3]") {
		t.Errorf("got %v", err)
	}
	run.Close()
	run.Close()
}

// Evaluation drops nothing, moves no statistics, keeps no graph, and takes any number of rows.
func TestInfer(t *testing.T) {
	torchtest.Check(t)
	model := nn.NewSequential(nn.NewLinear(4, 6), nn.NewBatchNorm1d(6, nn.BatchNormConfig{}), nn.NewReLUInPlace(),
		nn.NewDropout(0.9), nn.NewLinear(6, 2))
	p := started(t, model, pipe.Config{Balance: []int{2, 3}, Chunks: 3})
	c := torch.NewCtx(torch.Options{Threads: 1})
	defer c.Close()
	before := snapshot(model, nil, gradient)
	for _, rows := range []int64{1, 2, 3, 10, 0} {
		x := normal(rows, 4)(c, 0)
		got, err := eval(p, context.Background(), x)
		if err != nil {
			t.Fatal(err)
		}
		// To the bit what the plain model makes of the micro-batches: products of other numbers of
		// rows round otherwise.
		var want []byte
		for start, part := int64(0), int64(3); start < rows; part-- {
			length := (rows - start + part - 1) / part
			want = append(want, torch.Bytes(model.Forward(nn.NewCtx(c, nn.Config{}), c.Narrow(x, 0, start, length)))...)
			start += length
		}
		if !bytes.Equal(torch.Bytes(got), want) {
			t.Errorf("%d rows: eval differs from the plain model", rows)
		}
		if !slices.Equal(got.Shape(), []int64{rows, 2}) || got.RequiresGrad() {
			t.Errorf("%d rows: got %v", rows, got)
		}
		got.Free()
	}
	if d := before.differs(snapshot(model, nil, gradient)); d != "" {
		t.Errorf("evaluation changed %s", d)
	}
}

func TestUseAfterClose(t *testing.T) {
	torchtest.Check(t)
	model := small()
	p, err := pipe.New(model, pipe.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer nn.Free(model)
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	x, ctx := normal(4, 4)(c, 0), context.Background()
	b := pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(normal(4, 3)(c, 0))}
	run, err := p.Forward(ctx, b)
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	p.Close()
	for name, use := range map[string]func() error{
		"Step":     func() error { _, err := p.Step(ctx, b, squares{}); return err },
		"Forward":  func() error { _, err := p.Forward(ctx, b); return err },
		"Backward": func() error { return run.Backward(ctx, b.Target[0].Tensor) },
		"Infer":    func() error { _, err := p.Infer(ctx, b); return err },
		"OnStages": func() error { return p.OnStages(ctx, func(int, *torch.Ctx) error { return nil }) },
		"Convert":  func() error { return p.Convert(ctx, torch.Float64) },
	} {
		if err := use(); !errors.Is(err, pipe.ErrClosed) {
			t.Errorf("%s after Close: %v", name, err)
		}
	}
}

// A recorded timeline has every action of the program, once, on its worker and in an order that the
// program allows.
func TestRecordedTimelineIsTheProgram(t *testing.T) {
	torchtest.Check(t)
	model := small()
	p := started(t, model, pipe.Config{Balance: []int{2, 2}, Chunks: 3, Checkpoint: pipe.Always, Record: true})
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	result, err := p.Step(context.Background(),
		pipe.Batch{Input: pipe.Rows(normal(6, 4)(c, 0)), Target: pipe.Rows(normal(6, 3)(c, 1))}, squares{})
	if err != nil {
		t.Fatal(err)
	}
	if err := result.Timeline.Validate(); err != nil {
		t.Error(err)
	}
	program, _ := schedule.GPipe(schedule.Config{Stages: 2, MicroBatches: 3, Recompute: func(int, int) bool { return true }})
	graph := program.Graph()
	end := make([]time.Duration, len(graph.Actions))
	for _, e := range result.Timeline.Events {
		id, ok := graph.IndexOf(e.Action)
		if !ok || end[id] != 0 || graph.Worker[id] != e.Worker {
			t.Fatalf("event %v is not in the program, or twice", e)
		}
		end[id] = e.End
	}
	for _, e := range result.Timeline.Events {
		id, _ := graph.IndexOf(e.Action)
		for _, dep := range graph.Deps[id] {
			if end[dep] == 0 || end[dep] > e.Start {
				t.Errorf("%v started at %v, before %v ended at %v", e.Action, e.Start, graph.Actions[dep], end[dep])
			}
		}
	}
	last := result.Timeline.Events[0] // of worker 0: a backward, of which only gradients of parameters are left
	for _, e := range result.Timeline.Events {
		if e.Live <= 0 {
			t.Errorf("%v left %d bytes", e.Action, e.Live)
		}
		if e.Worker == 0 && e.End > last.End {
			last = e
		}
	}
	if live := torch.CPU(0).Memory().Live; last.Live != live {
		t.Errorf("%v left %d bytes, and the device has %d", last.Action, last.Live, live)
	}
	p.SetRecord(false)
	if result, err = p.Step(context.Background(),
		pipe.Batch{Input: pipe.Rows(normal(6, 4)(c, 0)),
			Target: pipe.Rows(normal(6, 3)(c, 1))}, squares{}); err != nil || result.Timeline != nil {
		t.Errorf("got %v, %v", result.Timeline, err)
	}
}
