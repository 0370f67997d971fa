package pipe_test

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// A batch is cut into as many micro-batches as were asked for or as it has rows, and the policy
// counts on the real number: with fewer rows than chunks except_last still spares one.
func TestRealNumberOfMicroBatches(t *testing.T) {
	torchtest.Check(t)
	model := nn.NewSequential(nn.NewLinear(3, 3), nn.NewTanh(), nn.NewLinear(3, 2))
	defer nn.Free(model)
	for _, row := range []struct {
		rows         int64
		chunks       int
		microBatches int
		recomputed   map[pipe.Checkpoint]int // by each stage
	}{
		{2, 2, 2, map[pipe.Checkpoint]int{pipe.Never: 0, pipe.Always: 2, pipe.ExceptLast: 1}},
		// torch.chunk: 3 of 4, all of them recomputed
		{5, 4, 4, map[pipe.Checkpoint]int{pipe.Never: 0, pipe.Always: 4, pipe.ExceptLast: 3}},
		{7, 4, 4, map[pipe.Checkpoint]int{pipe.Never: 0, pipe.Always: 4, pipe.ExceptLast: 3}},
		{2, 4, 2, map[pipe.Checkpoint]int{pipe.Never: 0, pipe.Always: 2, pipe.ExceptLast: 1}},
		{1, 4, 1, map[pipe.Checkpoint]int{pipe.Never: 0, pipe.Always: 1, pipe.ExceptLast: 0}},
		{1, 1, 1, map[pipe.Checkpoint]int{pipe.Never: 0, pipe.Always: 1, pipe.ExceptLast: 0}},
	} {
		for _, policy := range policies {
			p, err := pipe.New(model, pipe.Config{Balance: []int{2, 1}, Chunks: row.chunks, Checkpoint: policy, Record: true})
			if err != nil {
				t.Fatal(err)
			}
			c := torch.NewCtx(torch.Options{})
			b := pipe.Batch{Input: pipe.Rows(normal(row.rows, 3)(c, 0)), Target: pipe.Rows(normal(row.rows, 2)(c, 1))}
			result, err := p.Step(context.Background(), b, nn.MSE().Sum())
			if err != nil {
				t.Fatalf("%d rows: %v", row.rows, err)
			}
			count := map[string]int{}
			for _, e := range result.Timeline.Events {
				count[fmt.Sprint(e.Action.Kind, e.Action.Stage)]++
			}
			for stage := range 2 {
				for kind, want := range map[schedule.Kind]int{schedule.Forward: row.microBatches,
					schedule.Recompute: row.recomputed[policy], schedule.Backward: row.microBatches} {
					if got := count[fmt.Sprint(kind, stage)]; got != want {
						t.Errorf("%d rows in %d chunks, %v: stage %d did %d of %v, want %d", row.rows, row.chunks,
							policy, stage, got, kind, want)
					}
				}
			}
			infer, err := p.Infer(context.Background(), b)
			if err != nil {
				t.Fatal(err)
			}
			run, err := p.Forward(context.Background(), b)
			if err != nil {
				t.Fatal(err)
			}
			for _, got := range []int{result.MicroBatches, infer.MicroBatches, run.MicroBatches()} {
				if got != row.microBatches {
					t.Errorf("%d rows in %d chunks: %d micro-batches, want %d", row.rows, row.chunks, got, row.microBatches)
				}
			}
			for _, e := range infer.Timeline.Events {
				if k := e.Action.Kind; k != schedule.Forward && k != schedule.SendActivation && k != schedule.ReceiveActivation {
					t.Errorf("inference did %v", e.Action)
				}
			}
			for _, y := range []*torch.Tensor{infer.Output[0], run.Output()[0]} {
				if want := []int64{row.rows, 2}; !reflect.DeepEqual(y.Shape(), want) {
					t.Errorf("output %v, want %v", y, want)
				}
			}
			infer.Output[0].Free()
			run.Close()
			c.Close()
			p.Close()
			nn.ZeroGrads(model)
		}
	}
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
		notes = append(notes, note{c.MicroBatch, c.MicroBatches, c.Training, c.Checkpointing, c.Recomputing, c.Grad()})
		return c.Tanh(x)
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
		p, err := pipe.New(model, pipe.Config{Balance: []int{1, 1}, Chunks: 2, Checkpoint: row.policy})
		if err != nil {
			t.Fatal(err)
		}
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
			result, err := p.Infer(context.Background(), inMode(b, training))
			if err != nil {
				t.Fatal(err)
			}
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

// A recomputation drops what the forward dropped: where the output of a hundred dropouts is not
// zero, and only there, the input has a gradient.
func TestRecomputationDropsTheSame(t *testing.T) {
	torchtest.Check(t)
	for _, policy := range policies {
		model := nn.NewSequential()
		for i := range 100 {
			model.Add(fmt.Sprint(i), nn.NewDropout(0.01))
		}
		p := started(t, model, pipe.Config{Balance: []int{33, 33, 34}, Chunks: 3, Checkpoint: policy, Seed: 2})
		c := torch.NewCtx(torch.Options{})
		defer c.Close()
		x := c.Ones(torch.Float32, 10, 20).SetRequiresGrad(true)
		run, err := p.Forward(context.Background(), pipe.Batch{Input: pipe.Rows(x), Step: 3})
		if err != nil {
			t.Fatal(err)
		}
		y := torch.Values[float32](run.Output()[0])
		if err := run.Backward(context.Background(), c.Ones(torch.Float32, 10, 20)); err != nil {
			t.Fatal(err)
		}
		zeros := 0
		for i, g := range torch.Values[float32](c.GradOf(x)) {
			if (g == 0) != (y[i] == 0) {
				t.Fatalf("%v: element %d of the output is %v and its gradient %v", policy, i, y[i], g)
			}
			if g == 0 {
				zeros++
			}
		}
		if zeros < 60 || zeros > 190 {
			t.Errorf("%v: %d of 200 elements were dropped, about 127 are expected", policy, zeros)
		}
		x.SetGradOf(nil)
	}
}
