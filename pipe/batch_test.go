package pipe_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// What is not cut goes whole to every micro-batch, has its gradient summed over them, and comes out
// once for each.
func TestNoChunk(t *testing.T) {
	torchtest.Check(t)
	for _, rows := range []int64{1, 2, 7} {
		q := trial{rows: rows, steps: 2, loss: squares{}, targets: one(normal(rows, 3)), inputs: func(c *torch.Ctx) []part {
			return []part{
				{t: normal(4, 3)(c, 5).SetRequiresGrad(true), whole: true}, // first, with rows of its own
				{t: normal(rows, 4)(c, 6).SetRequiresGrad(true)},
				{t: torch.Scalar(c, float32(3)).SetRequiresGrad(true), whole: true},
				{t: torch.From(c, []int64{2, 0, 1}), whole: true},
			}
		}}
		q.model = func() *nn.Sequential {
			return nn.NewSequential(tuples(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
				return []*torch.Tensor{xs[0], c.Tanh(xs[1]), xs[2], xs[3]}
			}),
				tuples(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
					y := c.Mul(c.Mm(xs[1], xs[0]), xs[2])
					return []*torch.Tensor{xs[3], c.Add(y, c.To(xs[3], torch.Float32))}
				}),
				tuples(func(_ *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor { return xs[1:] }), nn.NewLinear(3, 3))
		}
		want := q.check(t, 3)
		for _, i := range []int{0, 1, 2} {
			if want.values[fmt.Sprintf("gradient of input %d of step 1", i)] == nil {
				t.Errorf("input %d has no gradient", i)
			}
		}
	}
	p := started(t, nn.NewSequential(tuples(func(_ *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor { return xs[:] })),
		pipe.Config{Chunks: 3})
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	result, err := p.Infer(context.Background(),
		pipe.Batch{Input: append(pipe.Rows(whole(c, 0, 5, 1)), pipe.NoChunk(torch.From(c, []float32{7, 8}))...)})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := torch.Values[float32](result.Output[1]), []float32{7, 8, 7, 8, 7, 8}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, y := range result.Output {
		y.Free()
	}
}

type twoLosses struct{}

func (twoLosses) forward(c *nn.Ctx, ys, ts []*torch.Tensor) *torch.Tensor {
	weighted := c.Mul(c.Sub(ys[0], ts[0]), ts[1])
	return c.Add(c.Mean(c.Mul(weighted, weighted)), c.CrossEntropy(ys[1], ts[2], nil, torch.ReduceMean, -100, 0))
}
func (twoLosses) Reduction() torch.Reduction { return torch.ReduceMean }

// Values that are no tensors reach every layer on every stage, in recomputations too, each batch's
// its own. Where one is missing the error says which and where.
func TestExtras(t *testing.T) {
	torchtest.Check(t)
	scale, names := nn.NewExtra[float64]("scale"), nn.NewExtra[[]string]("names")
	build := func() *nn.Sequential {
		use := func() nn.Layer {
			return layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				if n, ok := names.Lookup(c); !ok || !slices.Equal(n, []string{"a", "b"}) {
					panic(fmt.Sprint("names are ", n))
				}
				return c.Tanh(c.MulScalar(x, scale.In(c)))
			})
		}
		return nn.NewSequential(nn.NewLinear(3, 3), use(), nn.NewLinear(3, 3), use())
	}
	extras := []nn.Extra{scale.With(1.5), names.With([]string{"a", "b"})}
	q := trial{rows: 5, model: build, loss: squares{}, inputs: one(normal(5, 3)), targets: one(normal(5, 3)), extras: extras}
	q.check(t, 2)

	p := started(t, build(), pipe.Config{Balance: []int{1, 3}, Chunks: 2})
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	x := normal(4, 3)(c, 0)
	infer := func(extras ...nn.Extra) ([]byte, error) {
		result, err := p.Infer(context.Background(), pipe.Batch{Input: pipe.Rows(x), Extras: extras})
		if err != nil {
			return nil, err
		}
		defer result.Output[0].Free()
		return torch.Bytes(result.Output[0]), nil
	}
	one, err := infer(extras...)
	if err != nil {
		t.Fatal(err)
	}
	if other, err := infer(scale.With(0.5), extras[1]); err != nil || reflect.DeepEqual(one, other) {
		t.Errorf("another extra changes nothing; %v", err)
	}
	if again, err := infer(extras...); err != nil || !reflect.DeepEqual(one, again) {
		t.Errorf("the extra of another run was seen; %v", err)
	}
	for _, missing := range [][]nn.Extra{{extras[1]}, {extras[1], nn.NewExtra[float64]("scale").With(1.5)}} { // a key of the same name is another
		_, err := infer(missing...)
		for _, want := range []string{`pipe: stage 1, micro-batch 0, layer "1", forward`,
			`the run has no extra "scale"`, "give it to the batch"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		}
	}
}

func ofRows(rows int64) trial {
	return trial{rows: rows, loss: nn.MSE().Sum(), inputs: wanted(normal(rows, 4)), targets: one(normal(rows, 4)),
		model: func() *nn.Sequential {
			return nn.NewSequential(stashing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { c.Stash("a", x); return c.Tanh(x) }, "a"), nn.NewLinear(4, 4),
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
				"pipe: the batch has no rows (input 0 is float32[0,4]); a training step needs at least one") {
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
