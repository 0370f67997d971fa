package pipe_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"sync"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/models"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// lowered is a problem with the name of its model.
type lowered struct {
	name string
	problem
}

func autocastProblems(t *testing.T) []lowered {
	build := func(name string, o models.Options) func() *nn.Sequential {
		return func() *nn.Sequential {
			m, err := models.New(name, o)
			if err != nil {
				t.Fatal(err)
			}
			return m
		}
	}
	const rows, tokens, words = 6, 7, 11
	text := func(shift int) func(c *torch.Ctx, step int) *torch.Tensor {
		return func(c *torch.Ctx, step int) *torch.Tensor {
			return c.Reshape(classes(rows*tokens, words)(c, step+shift), rows, tokens)
		}
	}
	entropy := nn.CrossEntropy()
	return []lowered{
		{"resnet20", problem{model: build("resnet20", models.Options{Channels: 1, Width: 4}), loss: entropy,
			input: normal(rows, 1, 12, 12), target: classes(rows, 10), rows: rows, steps: 2, deferred: true}},
		{"gpt", problem{model: build("gpt", models.Options{Width: 16, Depth: 2, Heads: 2, Context: tokens, Classes: words, Dropout: 0.1}), loss: entropy, input: text(0), target: text(1), rows: rows, steps: 2}},
		{"mlp", problem{model: build("mlp", models.Options{Channels: 1, Size: 6, Width: 32, Dropout: 0.2}),
			loss: entropy, input: normal(rows, 1, 6, 6), target: classes(rows, 10), rows: rows, steps: 3}},
	}
}

// evenCuts are balances of 1 to 3 stages.
func evenCuts(layers int) [][]int {
	return [][]int{{layers}, {layers / 2, layers - layers/2}, {1, layers - 2, 1}}
}

// A pipeline under autocast is the plain loop on a context under autocast, bit for bit. That is
// near the loop in float32, and not the same.
func TestAutocastIsTransparent(t *testing.T) {
	for _, q := range autocastProblems(t) {
		t.Run(q.name, func(t *testing.T) {
			torchtest.Check(t)
			precise := q.plain(3, 5)
			q.autocast = torch.AutocastBFloat16
			want := q.plain(3, 5)
			if want.differs(precise) == "" {
				t.Error("autocast changes nothing")
			}
			for i, loss := range want.losses {
				if d := math.Abs(loss - precise.losses[i]); d > 0.03*precise.losses[i] {
					t.Errorf("the loss of step %d is %v, in float32 %v", i, loss, precise.losses[i])
				}
			}
			for _, balance := range evenCuts(len(q.model().Layers())) {
				for _, policy := range policies {
					cfg := pipe.Config{Balance: balance, Chunks: 3, Checkpoint: policy, Seed: 5, Autocast: torch.AutocastBFloat16,
						DeferredBatchNorm: q.deferred}
					if d := want.differs(q.piped(t, cfg)); d != "" {
						t.Errorf("balance %v, %v: %s differs from the plain loop", balance, policy, d)
					}
				}
			}
		})
	}
}

// observer counts what its layers are given, which they hand on.
type observer struct {
	mu   sync.Mutex
	seen map[string]int
}

func (o *observer) layer(name string) nn.Layer {
	return layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.seen == nil {
			o.seen = map[string]int{}
		}
		o.seen[fmt.Sprintf("%s: %v, autocast %v, recomputing %v", name, x.DType(), c.Autocast(), c.Recomputing)]++
		return x
	})
}

// What crosses stages is bfloat16, in forward and in a recomputation; parameters and their
// gradients are float32.
func TestAutocastLowersWhatCrossesStages(t *testing.T) {
	torchtest.Check(t)
	var o observer
	model := nn.NewSequential(o.layer("input"), nn.NewLinear(4, 8), o.layer("second"), nn.NewTanh(),
		nn.NewLinear(8, 8), o.layer("third"), nn.NewLinear(8, 3))
	p := started(t, model, pipe.Config{Balance: []int{2, 3, 2}, Chunks: 3, Checkpoint: pipe.ExceptLast, Autocast: torch.AutocastBFloat16})
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	defer nn.ZeroGrads(model)
	b := pipe.Batch{Input: pipe.Rows(normal(7, 4)(c, 0)), Target: pipe.Rows(classes(7, 3)(c, 0))}
	if _, err := p.Step(context.Background(), b, nn.CrossEntropy()); err != nil {
		t.Fatal(err)
	}
	for name, dtype := range map[string]torch.DType{"input": torch.Float32, "second": torch.BFloat16, "third": torch.BFloat16} {
		for recomputing, times := range map[bool]int{false: 3, true: 2} {
			what := fmt.Sprintf("%s: %v, autocast bfloat16, recomputing %v", name, dtype, recomputing)
			if o.seen[what] != times {
				t.Errorf("%s: %d times, want %d", what, o.seen[what], times)
			}
		}
	}
	if len(o.seen) != 6 {
		t.Errorf("seen %v", o.seen)
	}
	for _, s := range nn.Params(model) {
		if g := c.GradOf(s.Tensor()); s.Tensor().DType() != torch.Float32 || g == nil || g.DType() != torch.Float32 {
			t.Errorf("%s is %v, its gradient %v", s.Name, s.Tensor(), g)
		}
	}
}

// Infer and Forward run under it as well: the outputs are bfloat16, and those of the plain model.
func TestAutocastOfInference(t *testing.T) {
	torchtest.Check(t)
	model := small()
	p := started(t, model, pipe.Config{Balance: []int{2, 2}, Chunks: 3, Seed: 1, Autocast: torch.AutocastBFloat16})
	c := torch.NewCtx(torch.Options{Threads: 1, Autocast: torch.AutocastBFloat16})
	defer c.Close()
	x := normal(7, 4)(c, 0)
	for _, training := range []bool{true, false} {
		result, err := p.Infer(context.Background(), pipe.Batch{Input: pipe.Rows(x), Training: training})
		if err != nil {
			t.Fatal(err)
		}
		got, start := result.Output[0], int64(0)
		var want []*torch.Tensor
		for i, n := range []int64{3, 2, 2} {
			ctx := nn.NewCtx(c, nn.Config{Training: training, MicroBatch: i, MicroBatches: 3, Seed: torch.Mix(1, 0)})
			want = append(want, model.Forward(ctx, c.Narrow(x, 0, start, n)))
			start += n
		}
		if got.DType() != torch.BFloat16 || !bytes.Equal(torch.Bytes(got), torch.Bytes(c.Cat(want, 0))) {
			t.Errorf("training %v: the output, %v, is not the plain model's", training, got)
		}
		got.Free()
	}
	y, err := eval(p, context.Background(), x)
	if err != nil || y.DType() != torch.BFloat16 {
		t.Errorf("Infer: %v, %v", y, err)
	}
	y.Free()
	run, err := p.Forward(context.Background(), pipe.Batch{Input: pipe.Rows(x)})
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	defer nn.ZeroGrads(model)
	g := c.To(normal(7, 3)(c, 1), run.Output()[0].DType())
	if err := run.Backward(context.Background(), g); err != nil || !model.Layers()[0].State()[0].Tensor().HasGrad() {
		t.Errorf("Backward of a run: %v", err)
	}
}
