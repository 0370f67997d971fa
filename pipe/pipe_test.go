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

	"penstock.example/internal/must"
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
			p := must.Get(pipe.New(model,
				pipe.Config{Balance: balance, Chunks: 3, Checkpoint: policy, Seed: 3}))(t)
			c := torch.NewCtx(torch.Options{Threads: 1})
			b := pipe.Batch{Input: pipe.Rows(normal(9, 4)(c, 0)), Target: pipe.Rows(normal(9, 3)(c, 1)),
				Step: new(int64(4))}
			sum := nn.MSE(nn.LossConfig{Sum: true})
			result := must.Get(p.Step(context.Background(), b, sum))(t)
			want := snapshot(model, nil, gradient)
			nn.ZeroGrads(model)
			run := must.Get(p.Forward(context.Background(), b))(t)
			if run.MicroBatches() != 3 || fmt.Sprint(run.Output()[0].Shape()) != "[9 3]" {
				t.Errorf("%d micro-batches, output %v", run.MicroBatches(), run.Output()[0])
			}
			c.SetGrad(true)
			loss := c.Op("aten::mse_loss", run.Output()[0], b.Target[0].Tensor, torch.ReduceSum)
			if got := float64(torch.Item[float32](loss)); got-result.Loss > 1e-4 || result.Loss-got > 1e-4 {
				t.Errorf("loss %v, Step says %v", got, result.Loss)
			}
			c.Backward([]*torch.Tensor{loss}, []*torch.Tensor{nil}, false)
			must.Do(t, run.Backward(context.Background()))
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

// Evaluation drops nothing, moves no statistics, keeps no graph, and takes any number of rows.
func TestInfer(t *testing.T) {
	torchtest.Check(t)
	model := nn.NewSequential(nn.NewLinear(4, 6), nn.NewBatchNorm1d(6, nn.BatchNormConfig{}),
		nn.NewReLUInPlace(),
		nn.NewDropout(0.9), nn.NewLinear(6, 2))
	p := started(t, model, pipe.Config{Balance: []int{2, 3}, Chunks: 3})
	c := newCtx(t, torch.Options{Threads: 1})
	before := snapshot(model, nil, gradient)
	for _, rows := range []int64{1, 2, 3, 10, 0} {
		x := normal(rows, 4)(c, 0)
		got := must.Get(eval(p, context.Background(), x))(t)
		// To the bit what the plain model makes of the micro-batches: products of other numbers of
		// rows round otherwise.
		var want []byte
		for start, part := int64(0), int64(3); start < rows; part-- {
			length := (rows - start + part - 1) / part
			want = append(want, torch.Bytes(model.Forward(nn.NewCtx(c, nn.Config{}),
				c.Narrow(x, 0, start, length)))...)
			start += length
		}
		if !bytes.Equal(torch.Bytes(got), want) {
			t.Errorf("%d rows: eval differs from the plain model", rows)
		}
		if !slices.Equal(got.Shape(), []int64{rows, 2}) || got.RequiresGrad() {
			t.Errorf("%d rows: got %v", rows, got)
		}
		got.Free()
		var each []byte
		result := must.Get(p.Infer(context.Background(), pipe.Batch{Input: pipe.Rows(x),
			Each: func(first int64, output []*torch.Tensor) {
				if int64(len(each)) != first*8 || len(output) != 1 {
					t.Errorf("%d rows: an output of %d tensors from row %d", rows, len(output), first)
				}
				each = append(each, torch.Bytes(output[0])...)
			}}))(t)
		if !bytes.Equal(each, want) || result.Output != nil {
			t.Errorf("%d rows: Each gets other outputs, or they are gathered: %v", rows, result.Output)
		}
	}
	if d := before.differs(snapshot(model, nil, gradient)); d != "" {
		t.Errorf("evaluation changed %s", d)
	}
}

func TestUseAfterClose(t *testing.T) {
	torchtest.Check(t)
	model := small()
	p := must.Get(pipe.New(model, pipe.Config{}))(t)
	defer nn.Free(model)
	c := newCtx(t, torch.Options{})
	x, ctx := normal(4, 4)(c, 0), context.Background()
	b := pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(normal(4, 3)(c, 0))}
	run := must.Get(p.Forward(ctx, b))(t)
	p.Close()
	p.Close()
	for name, use := range map[string]func() error{
		"Step":     func() error { _, err := p.Step(ctx, b, squares{}); return err },
		"Forward":  func() error { _, err := p.Forward(ctx, b); return err },
		"Backward": func() error { return run.Backward(ctx, b.Target[0].Tensor) },
		"Infer":    func() error { _, err := p.Infer(ctx, b); return err },
		"OnStages": func() error { return p.OnStages(ctx, func(int, *torch.Ctx) error { return nil }) },
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
	p := started(t, model, pipe.Config{Balance: []int{2, 2}, Chunks: 3, Checkpoint: pipe.Always,
		Record: true})
	c := newCtx(t, torch.Options{})
	result := must.Get(p.Step(context.Background(),
		pipe.Batch{Input: pipe.Rows(normal(6, 4)(c, 0)),
			Target: pipe.Rows(normal(6, 3)(c, 1))}, squares{}))(t)
	if err := result.Timeline.Validate(); err != nil {
		t.Error(err)
	}
	program, _ := schedule.GPipe(schedule.Config{Stages: 2, MicroBatches: 3,
		Recompute: func(int, int) bool { return true }})
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
				t.Errorf("%v started at %v, before %v ended at %v", e.Action, e.Start, graph.Actions[dep],
					end[dep])
			}
		}
	}
	// of worker 0: a backward, of which only gradients of parameters are left
	last := result.Timeline.Events[0]
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
	if result, err := p.Step(context.Background(),
		pipe.Batch{Input: pipe.Rows(normal(6, 4)(c, 0)),
			Target: pipe.Rows(normal(6, 3)(c, 1))}, squares{}); err != nil || result.Timeline != nil {
		t.Errorf("got %v, %v", result.Timeline, err)
	}
}

// Parameters and buffers are made on the device of their stage and nowhere else, and move when the
// model is cut anew.
func TestParametersLiveOnTheirStage(t *testing.T) {
	torchtest.Check(t)
	model := nn.NewSequential(nn.NewLinear(8, 8), nn.NewBatchNorm1d(8, nn.BatchNormConfig{}),
		nn.NewLinear(8, 3))
	defer nn.Free(model)
	sizes := []int64{(64 + 8) * 4, 4*8*4 + 8, (24 + 3) * 4} // of the layers, in bytes
	var base [3]int64
	for i := range base {
		base[i] = torch.CPU(i).Memory().Live
	}
	for _, balance := range cuts(3, 3) {
		p := must.Get(pipe.New(model, pipe.Config{Balance: balance}))(t)
		first := 0
		for i := range base {
			want := int64(0)
			if i < len(balance) {
				for _, n := range sizes[first : first+balance[i]] {
					want += n
				}
				first += balance[i]
			}
			if got := torch.CPU(i).Memory().Live - base[i]; got != want {
				t.Errorf("balance %v: %d bytes on cpu:%d, want %d", balance, got, i, want)
			}
		}
		p.Close()
	}
}

// What is not cut goes whole to every micro-batch, has its gradient summed over them, and comes out
// once for each.
func TestNoChunk(t *testing.T) {
	torchtest.Check(t)
	for _, rows := range []int64{1, 2, 7} {
		q := trial{rows: rows, steps: 2, loss: squares{}, targets: one(normal(rows, 3)),
			inputs: func(c *torch.Ctx) []part {
				return []part{
					{t: normal(4, 3)(c, 5).SetRequiresGrad(true), whole: true}, // first, with rows of its own
					{t: normal(rows, 4)(c, 6).SetRequiresGrad(true)},
					{t: c.Fill_(c.Empty(torch.Float32), 3).SetRequiresGrad(true), whole: true},
					{t: torch.From(c, []int64{2, 0, 1}), whole: true},
				}
			}}
		q.model = func() *nn.Sequential {
			return nn.NewSequential(tuples(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
				return []*torch.Tensor{xs[0], c.Op("aten::tanh", xs[1]), xs[2], xs[3]}
			}),
				tuples(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
					y := c.Mul(c.Op("aten::mm", xs[1], xs[0]), xs[2])
					return []*torch.Tensor{xs[3], c.Add(y, c.To(xs[3], torch.Float32))}
				}),
				tuples(func(_ *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor { return xs[1:] }),
				nn.NewLinear(3, 3))
		}
		want := q.check(t, 3)
		for _, i := range []int{0, 1, 2} {
			if want.values[fmt.Sprintf("gradient of input %d of step 1", i)] == nil {
				t.Errorf("input %d has no gradient", i)
			}
		}
	}
}

// Values that are no tensors reach every layer on every stage, in recomputations too, each batch's
// its own. A panic of a layer that misses one names the layer.
func TestExtras(t *testing.T) {
	torchtest.Check(t)
	build := func() *nn.Sequential {
		use := func() nn.Layer {
			return layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				if n := c.Extras["names"].([]string); !slices.Equal(n, []string{"a", "b"}) {
					panic(fmt.Sprint("names are ", n))
				}
				return c.Op("aten::tanh", c.MulScalar(x, c.Extras["scale"].(float64)))
			})
		}
		return nn.NewSequential(nn.NewLinear(3, 3), use(), nn.NewLinear(3, 3), use())
	}
	extras := map[string]any{"scale": 1.5, "names": []string{"a", "b"}}
	q := trial{rows: 5, model: build, loss: squares{}, inputs: one(normal(5, 3)),
		targets: one(normal(5, 3)), extras: extras}
	q.check(t, 2)

	p := started(t, build(), pipe.Config{Balance: []int{1, 3}, Chunks: 2})
	c := newCtx(t, torch.Options{})
	x := normal(4, 3)(c, 0)
	delete(extras, "scale")
	_, err := p.Infer(context.Background(), pipe.Batch{Input: pipe.Rows(x), Extras: extras})
	if want := `pipe: stage 1, micro-batch 0, layer "1", forward`; err == nil ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}

func ofRows(rows int64) trial {
	return trial{rows: rows, loss: nn.MSE(nn.LossConfig{Sum: true}), inputs: wanted(normal(rows, 4)),
		targets: one(normal(rows, 4)),
		model: func() *nn.Sequential {
			return nn.NewSequential(stashing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				c.Stash("a", x)
				return c.Op("aten::tanh", x)
			}, "a"), nn.NewLinear(4, 4),
				popping(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Add(x, c.Pop("a")) }, "a"))
		}}
}

// There is no step on no rows: the mean of no losses is no number. Inference gives no rows.
func TestNoRows(t *testing.T) {
	torchtest.Check(t)
	ctx := context.Background()
	for _, cfg := range configs(3, 4) {
		p := started(t, ofRows(0).model(), cfg)
		c := torch.NewCtx(torch.Options{})
		b := pipe.Batch{Input: pipe.Rows(normal(0, 4)(c, 0)), Target: pipe.Rows(normal(0, 4)(c, 1))}
		_, step := p.Step(ctx, b, nn.MSE())
		_, forward := p.Forward(ctx, b)
		_, training := p.Infer(ctx, inMode(b, true))
		_, planning := p.PlanFor(ctx, b, nn.MSE())
		for what, err := range map[string]error{"Step": step, "Forward": forward, "PlanFor": planning,
			"Infer in training": training} {
			if err == nil || !strings.Contains(err.Error(),
				"pipe: the batch has no rows; a training step needs at least one") {
				t.Errorf("%s, %s: got %v", named(cfg), what, err)
			}
		}
		y, err := eval(p, ctx, b.Input[0].Tensor)
		if err != nil || y.String() != "float32[0,4]" {
			t.Errorf("%s: inference gives %v, %v", named(cfg), y, err)
		}
		y.Free()
		c.Close()
		p.Close()
	}
}

// What Step, Forward and Infer refuse of a batch, before anything runs.
func TestBatchSaysWhatToDo(t *testing.T) {
	torchtest.Check(t)
	p := started(t, small(), pipe.Config{Balance: []int{2, 2}, Chunks: 2})
	c := newCtx(t, torch.Options{})
	x, y, three, freed := normal(4, 4)(c, 0), normal(4, 3)(c, 1), normal(3, 4)(c, 0), normal(4, 4)(c, 0)
	freed.Free()
	number := c.Ones(torch.Float32)
	c.SetGrad(true)
	graph := c.Op("penstock::relu", normal(4, 4)(c, 0).SetRequiresGrad(true))
	c.SetGrad(false)
	rows := pipe.Rows
	for _, row := range []struct {
		input, target []pipe.Value
		want          string
	}{
		{nil, rows(y), "no input with rows; set at least one, as pipe.Rows(x)"},
		{rows(x, nil), rows(y), "input 1 is nil or freed"},
		{[]pipe.Value{{}}, rows(y), "input 0 is nil or freed"},
		{rows(number), rows(y), "input 0 is float32[], which has no rows to split"},
		{pipe.NoChunk(x, y), rows(y), "no input with rows"},
		{append(pipe.NoChunk(x), rows(x, three)...), rows(y), "input 2 has 3 rows, another one 4"},
		{rows(freed), rows(y), "input 0 is nil or freed"},
		{rows(x, meta(c, 4, 4)), rows(y), "input 1 is on meta and its stage on cpu:0"},
		{rows(graph), rows(y), "input 0 has a graph"},
		{rows(x), nil, "no target with rows"},
		{rows(x), rows(y, nil), "target 1 is nil or freed"},
		{rows(x), rows(freed), "target 0 is nil or freed"},
		{rows(x), rows(three), "the input has 4 rows, the target 3; want the same"},
		{rows(x), rows(y, three), "target 1 has 3 rows, another one 4"},
		{rows(x), rows(meta(c, 4, 3)), "target 0 is on meta and its stage on cpu:1; make it there"},
		{rows(x), rows(y), ""},
	} {
		_, err := p.Step(context.Background(), pipe.Batch{Input: row.input, Target: row.target}, squares{})
		if row.want == "" && err != nil || row.want != "" &&
			(err == nil || !strings.Contains(err.Error(), "pipe: ") ||
				!strings.Contains(err.Error(), row.want)) {
			t.Errorf("got %v, want %q", err, row.want)
		}
	}
	if _, err := p.Step(context.Background(), pipe.Batch{Input: rows(x), Target: rows(y)}, nil); err == nil {
		t.Error("a step without a loss is not refused")
	}
	nn.ZeroGrads(p.Model())
}
