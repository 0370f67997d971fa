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

func TestExtraDevicesAreIgnoredAndDefaultsFilledIn(t *testing.T) {
	torchtest.Check(t)
	model := small()
	p := started(t, model, pipe.Config{Balance: []int{3, 1}, Devices: cpus(6)})
	if got := fmt.Sprint(p.Devices()); got != "[cpu:0 cpu:1]" {
		t.Errorf("devices %s", got)
	}
	if cfg := p.Config(); cfg.Chunks != 1 || cfg.Threads != 1 || cfg.Checkpoint != pipe.ExceptLast {
		t.Errorf("%+v", cfg)
	}
	if s := p.Stages(); len(s) != 2 || len(s[0].Layers) != 3 || s[1].Layers[0].Name != "3" || s[1].Params()[0].Name != "3.weight" {
		t.Errorf("%+v", s)
	}
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

// The caller's batch is never overwritten, whatever the first layer does, and a layer that hides
// that it works in place is found out.
func TestInPlaceFirstLayer(t *testing.T) {
	torchtest.Check(t)
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	model := nn.NewSequential(nn.NewReLUInPlace(), nn.NewLinear(4, 2))
	p, err := pipe.New(model, pipe.Config{Balance: []int{1, 1}, Chunks: 2, Checkpoint: pipe.Always})
	if err != nil {
		t.Fatal(err)
	}
	defer nn.Free(model)
	x := normal(4, 4)(c, 0)
	before := string(torch.Bytes(x))
	if _, err := p.Step(context.Background(),
		pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(normal(4, 2)(c, 1))}, squares{}); err != nil {
		t.Fatal(err)
	}
	if string(torch.Bytes(x)) != before {
		t.Error("the caller's batch was overwritten")
	}
	p.Close()

	liar := nn.NewSequential(&saboteur{when: func(*nn.Ctx) bool { return true },
		how: func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.ReLU_(x) }})
	p, err = pipe.New(liar, pipe.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := eval(p, context.Background(), x); err == nil || !strings.Contains(err.Error(), "nn.InPlace") {
		t.Errorf("got %v", err)
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

// A model that exists is moved, not made anew, and can be cut again and again.
func TestModelsMoveBetweenPipes(t *testing.T) {
	torchtest.Check(t)
	model := small()
	defer nn.Free(model)
	var want record
	for i, balance := range [][]int{{4}, {2, 2}, {1, 1, 1, 1}, {3, 1}} {
		p, err := pipe.New(model, pipe.Config{Balance: balance, Seed: uint64(i)})
		if err != nil {
			t.Fatal(err)
		}
		p.Close()
		got := snapshot(model, nil, gradient)
		if i == 0 {
			want = got
		} else if d := want.differs(got); d != "" {
			t.Errorf("balance %v changed %s", balance, d)
		}
	}
}

func TestCheckpointOfEachStage(t *testing.T) {
	for _, row := range []struct {
		policy pipe.Checkpoint
		stages int
		want   []pipe.Checkpoint
		fault  string
	}{
		{"", 2, []pipe.Checkpoint{pipe.ExceptLast, pipe.ExceptLast}, ""},
		{pipe.Never, 1, []pipe.Checkpoint{pipe.Never}, ""},
		{pipe.PerStage(pipe.Always, "", pipe.Optimal), 3, []pipe.Checkpoint{pipe.Always, pipe.ExceptLast, pipe.Optimal}, ""},
		{"always,sometimes", 2, nil, `"sometimes" is no policy; want never, except_last, always or optimal`},
		{"always, never", 2, nil, `" never" is no policy`},
		{"always,never", 3, nil, `Checkpoint is "always,never": 2 policies for 3 stages; want one for each stage, or one for all`},
	} {
		got, err := row.policy.Stages(row.stages)
		if fmt.Sprint(got) != fmt.Sprint(row.want) || (err == nil) != (row.fault == "") || err != nil && !strings.Contains(err.Error(), row.fault) {
			t.Errorf("%q for %d stages: got %v, %v", row.policy, row.stages, got, err)
		}
	}
	if got := fmt.Sprint(pipe.Checkpoint("")); got != "except_last" {
		t.Errorf("the zero value prints as %q", got)
	}
}
