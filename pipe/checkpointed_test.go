package pipe_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/profile"
	"penstock.example/schedule"
	"penstock.example/torch"
)

// wrappedNet is six flattened layers of every kind, three of them wrapped: with dropout and batch
// norm, one wrapper in another, and skips into one and out of one.
func wrappedNet(wrap func(nn.Layer) nn.Layer) *nn.Sequential {
	stash, pop := layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { c.Stash("far", x); return x }),
		layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Add(x, c.Pop("far")) })
	stash.Stashes("far")
	pop.Pops("far")
	return nn.NewSequential().
		Add("stem", wrap(nn.NewConv2d(2, 4, nn.Square(3), nn.Conv2dConfig{Padding: nn.Square(1)}))).
		Add("one", grouped{wrap(nn.NewSequential(nn.NewBatchNorm2d(4, nn.BatchNormConfig{}), nn.NewReLUInPlace(), stash, nn.NewDropout(0.3)))}).
		Add("two", grouped{wrap(nn.NewSequential(nn.NewReLUInPlace(), grouped{wrap(nn.NewBasicBlock(4, 4, 1))}, pop))}).
		Add("pool", nn.NewAdaptiveAvgPool2d(nn.Square(1))).
		Add("flat", nn.NewFlatten(1, -1)).
		Add("head", nn.NewLinear(4, 3))
}

// grouped is a layer that a pipe does not flatten, so that a model has the same layers with wrappers
// and without.
type grouped struct{ nn.Layer }

func (l grouped) OverwritesInput() bool {
	f, ok := l.Layer.(nn.InPlace)
	return ok && f.OverwritesInput()
}

func wrappedProblem(wrap func(nn.Layer) nn.Layer) problem {
	return problem{
		model: func() *nn.Sequential { return wrappedNet(wrap) }, rows: 7, steps: 2,
		loss: nn.CrossEntropy(), input: normal(7, 2, 6, 6), target: classes(7, 3),
	}
}

// A pipeline of layers that recompute by themselves is the plain model without wrappers, for every
// policy: a stage that recomputes recomputes those too.
func TestCheckpointedLayersInAPipe(t *testing.T) {
	torchtest.Check(t)
	for _, deferred := range []bool{false, true} {
		plain, wrapped := wrappedProblem(unwrapped), wrappedProblem(nn.Checkpointed)
		plain.deferred = deferred
		want := plain.plain(3, 5)
		for _, balance := range [][]int{{6}, {2, 4}, {1, 1, 4}, {1, 2, 2, 1}} {
			for _, policy := range policies {
				got := wrapped.piped(t, pipe.Config{Balance: balance, Chunks: 3, Checkpoint: policy, Seed: 5,
					DeferredBatchNorm: deferred})
				if d := want.differs(got); d != "" {
					t.Errorf("balance %v, %v, deferred %v: %s differs from the plain loop without wrappers",
						balance, policy, deferred, d)
				}
			}
		}
	}
}

// Of a stage that keeps its graphs a wrapped layer keeps its inputs, for each micro-batch; the rest
// is made for one micro-batch and one wrapper at a time.
func TestCheckpointedLowersThePeakOfAStageThatRecomputesNothing(t *testing.T) {
	torchtest.Check(t)
	const rows, width, chunks, layers = 32, 16, 6, 5
	const activation = rows * width * 4
	device := torch.CPU(6)
	peak := func(wrap func(nn.Layer) nn.Layer) int64 {
		model := nn.NewSequential().Add("trained", nn.NewLinear(width, width))
		for _, name := range []string{"one", "two"} {
			block := nn.NewSequential()
			for k := range layers {
				block.Add(string(rune('a'+k)), nn.NewTanh())
			}
			model.Add(name, wrap(grouped{block}))
		}
		p := started(t, model, pipe.Config{Chunks: chunks, Checkpoint: pipe.Never, Devices: []torch.Device{device}})
		c := torch.NewCtx(torch.Options{})
		defer c.Close()
		in := normal(rows*chunks, width)(c, 0)
		defer nn.ZeroGrads(model)
		live := device.Memory().Live
		device.ResetPeak()
		if _, err := p.Step(context.Background(), pipe.Batch{Input: pipe.Rows(in), Target: pipe.Rows(in)}, mean{}); err != nil {
			t.Fatal(err)
		}
		return device.Memory().Peak - live
	}
	const slack = 6 * activation // what is on its way at any moment: gradients, an input and an output
	if got, least := peak(unwrapped), int64(chunks*2*layers*activation); got < least {
		t.Errorf("without wrappers the peak is %d bytes, less than the graphs' %d", got, least)
	}
	if got, most := peak(nn.Checkpointed), int64(chunks*2*activation+layers*activation+slack); got > most {
		t.Errorf("with wrappers the peak is %d bytes, more than %d: their inputs, and one graph", got, most)
	}
}

// buried is a model in whose second stage, in a wrapper in a wrapper, is the saboteur.
func buried(s *saboteur) *nn.Sequential {
	deep := nn.Checkpointed(nn.NewSequential(nn.NewTanh()).Add("it", s))
	return nn.NewSequential(nn.NewLinear(4, 8), nn.NewTanh()).Add("wrapped",
		nn.Checkpointed(nn.NewSequential(nn.NewLinear(8, 8)).Add("deep", deep))).Add("head", nn.NewLinear(8, 3))
}

// Whatever fails in a wrapped layer, in whichever run: the coordinates are the layer's own, nothing
// is held, and the pipe works as before.
func TestFailuresOfCheckpointedLayersHaveCoordinates(t *testing.T) {
	type value struct{ int }
	boom := errors.New("boom")
	ways := map[string]struct {
		how func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor
		is  func(e *pipe.Error) bool
	}{
		"an operator": {func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Mm(x, x) },
			func(e *pipe.Error) bool { return strings.Contains(e.Error(), "aten::mm(float32[") }},
		"a value": {func(*nn.Ctx, *torch.Tensor) *torch.Tensor { panic(value{3}) }, func(e *pipe.Error) bool {
			var p *pipe.PanicError
			return errors.As(e, &p) && p.Value == any(value{3})
		}},
		"an error": {func(*nn.Ctx, *torch.Tensor) *torch.Tensor { panic(boom) },
			func(e *pipe.Error) bool { return errors.Is(e, boom) }},
		"Goexit": {func(*nn.Ctx, *torch.Tensor) *torch.Tensor { runtime.Goexit(); return nil },
			func(e *pipe.Error) bool { return errors.Is(e, pipe.ErrGoexit) }},
		"nothing": {func(*nn.Ctx, *torch.Tensor) *torch.Tensor { return nil },
			func(e *pipe.Error) bool { return strings.Contains(e.Error(), "must return tensors") }},
		"memory": {func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			defer c.Device().SetLimit(0)
			c.Device().SetLimit(c.Device().Memory().Live + 64)
			return c.Ones(torch.Float32, 1<<16) // more than other workers may free meanwhile
		}, func(e *pipe.Error) bool { return errors.Is(e, torch.ErrOutOfMemory) }},
	}
	runs := []struct {
		when      string
		policy    pipe.Checkpoint
		is        func(c *nn.Ctx) bool
		direction schedule.Kind
	}{
		{"forward", pipe.Never, func(c *nn.Ctx) bool { return !c.Recomputing }, schedule.Forward},
		{"backward", pipe.Never, func(c *nn.Ctx) bool { return c.Recomputing && !c.Checkpointing }, schedule.Backward},
		{"recomputation", pipe.Always, func(c *nn.Ctx) bool { return c.Recomputing && !c.Grad() }, schedule.Recompute},
		{"backward after it", pipe.Always, func(c *nn.Ctx) bool { return c.Recomputing && c.Grad() }, schedule.Backward},
	}
	for name, way := range ways {
		for _, run := range runs {
			t.Run(name+"/"+run.when, func(t *testing.T) {
				torchtest.Check(t)
				s := &saboteur{how: way.how}
				model := buried(s)
				p := started(t, model, pipe.Config{Balance: []int{1, 2, 1}, Chunks: 3, Checkpoint: run.policy})
				c := torch.NewCtx(torch.Options{})
				defer c.Close()
				b := pipe.Batch{Input: pipe.Rows(normal(7, 4)(c, 0)), Target: pipe.Rows(classes(7, 3)(c, 0))}
				step := func() (pipe.Result, error) {
					defer nn.ZeroGrads(model)
					return p.Step(context.Background(), b, nn.CrossEntropy())
				}
				before, err := step()
				if err != nil {
					t.Fatal(err)
				}
				live := liveBytes(3)
				s.when = func(c *nn.Ctx) bool { return c.MicroBatch == 1 && run.is(c) }
				_, err = step()
				var e *pipe.Error
				if !errors.As(err, &e) || !way.is(e) {
					t.Fatalf("got %v", err)
				}
				if e.Stage != 1 || e.MicroBatch != 1 || e.Layer != "wrapped.deep.it" || e.Direction != run.direction {
					t.Errorf("got stage %d, micro-batch %d, layer %q, %v", e.Stage, e.MicroBatch, e.Layer, e.Direction)
				}
				if got := liveBytes(3); got != live {
					t.Errorf("live bytes %v, before the failure %v", got, live)
				}
				s.when = nil
				if after, err := step(); err != nil || after.Loss != before.Loss {
					t.Errorf("after the failure: loss %v, %v; before: %v", after.Loss, err, before.Loss)
				}
			})
		}
	}
}

// A run whose graph is kept goes back twice through wrappers, and gradients add up.
func TestCheckpointedLayersGoBackTwiceInAPipe(t *testing.T) {
	torchtest.Check(t)
	gradients := func(wrap func(nn.Layer) nn.Layer, policy pipe.Checkpoint) string {
		model := wrappedNet(wrap)
		p := started(t, model, pipe.Config{Balance: []int{2, 4}, Chunks: 3, Checkpoint: policy, Seed: 2})
		c := torch.NewCtx(torch.Options{Device: torch.CPU(1)})
		defer c.Close()
		defer nn.ZeroGrads(model)
		run, err := p.Forward(context.Background(), pipe.Batch{Input: pipe.Rows(normal(7, 2, 6, 6)(c, 0))})
		if err != nil {
			t.Fatal(err)
		}
		g := normal(7, 3)(c, 4)
		if err := errors.Join(run.BackwardRetained(context.Background(), g), run.Backward(context.Background(), g)); err != nil {
			t.Fatal(err)
		}
		var all []byte
		for _, s := range nn.Params(model) {
			all = append(all, gradient(s)...)
		}
		for _, s := range nn.Buffers(model) {
			all = append(all, torch.Bytes(s.Tensor())...)
		}
		return fmt.Sprintf("%x", all)
	}
	want := gradients(unwrapped, pipe.Never)
	for _, policy := range policies {
		if gradients(nn.Checkpointed, policy) != want {
			t.Errorf("%v: gradients or buffers differ from those without wrappers", policy)
		}
	}
}

// Without gradients a wrapper is not there; and it is measured as the layer that it is.
func TestCheckpointedLayersAreInferredAndMeasured(t *testing.T) {
	torchtest.Check(t)
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	x := normal(7, 2, 6, 6)(c, 0)
	var want [][]byte
	for _, wrap := range []func(nn.Layer) nn.Layer{unwrapped, nn.Checkpointed} {
		model := wrappedNet(wrap)
		p := started(t, model, pipe.Config{Balance: []int{2, 4}, Chunks: 3, Seed: 2})
		var got [][]byte
		for _, training := range []bool{true, false} {
			result, err := p.Infer(context.Background(), pipe.Batch{Input: pipe.Rows(x), Training: training})
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, torch.Bytes(result.Output[0]))
			result.Output[0].Free()
		}
		before := snapshot(model, nil, gradient)
		flat := nn.NewSequential(nn.NewConv2d(2, 4, nn.Square(3), nn.Conv2dConfig{}),
			wrap(nn.NewSequential(nn.NewBatchNorm2d(4, nn.BatchNormConfig{}), nn.NewReLUInPlace())))
		if p, err := profile.Measure(context.Background(), flat, profile.Config{Device: torch.CPU(3), Repeats: 1},
			x); err != nil || len(p.Layers) < 2 {
			t.Errorf("measured: %v, %v", p, err)
		}
		if d := before.differs(snapshot(model, nil, gradient)); d != "" {
			t.Errorf("measuring changed %s", d)
		}
		if want == nil {
			want = got
		} else if !bytes.Equal(got[0], want[0]) || !bytes.Equal(got[1], want[1]) {
			t.Error("the wrapped model gives another output")
		}
	}
}

// A tied parameter may be used in wrappers on both of its stages. Its gradient is the same but for
// rounding: its shares are grouped otherwise.
func TestCheckpointedLayersOfATiedParameter(t *testing.T) {
	torchtest.Check(t)
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	words := torch.From(c, []int64{3, 0, 6, 3, 1, 2, 5})
	gradients := func(wrap func(nn.Layer) nn.Layer, cfg pipe.Config) []float32 {
		embedding := nn.NewEmbedding(7, 4, nn.EmbeddingConfig{})
		model := nn.NewSequential(wrap(embedding), nn.NewTanh(),
			wrap(grouped{nn.NewSequential(nn.NewTanh(), nn.NewLinearShared(embedding.Weight, true))}))
		cfg.Chunks, cfg.Seed = 3, 3
		p := started(t, model, cfg)
		defer nn.ZeroGrads(model)
		if _, err := p.Step(context.Background(), pipe.Batch{Input: pipe.Rows(words), Target: pipe.Rows(words)},
			nn.CrossEntropy()); err != nil {
			t.Fatal(err)
		}
		return torch.Values[float32](c.GradOf(embedding.Weight.Tensor()))
	}
	want := gradients(unwrapped, pipe.Config{})
	for _, balance := range [][]int{{3}, {1, 2}, {1, 1, 1}} {
		for _, policy := range policies {
			got := gradients(nn.Checkpointed, pipe.Config{Balance: balance, Checkpoint: policy})
			for i := range want {
				if d := got[i] - want[i]; d > 1e-6 || d < -1e-6 {
					t.Fatalf("balance %v, %v: element %d of the gradient is %v, want %v", balance, policy, i, got[i], want[i])
				}
			}
		}
	}
}
