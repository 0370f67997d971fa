package pipe_test

import (
	"context"
	"fmt"
	"reflect"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// Tuples of any types come in, cross every stage and go out; those of floats have gradients.
func TestTuplesOfMixedTypes(t *testing.T) {
	torchtest.Check(t)
	types := []torch.DType{torch.Int64, torch.Float32, torch.Bool, torch.Float64, torch.BFloat16, torch.Uint8, torch.Int32}
	build := func() *nn.Sequential {
		next := func() nn.Layer { // turns the tuple by one place and changes what has gradients
			return tuples(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
				out := append([]*torch.Tensor{}, xs[1:]...)
				out = append(out, xs[0])
				for i, x := range out {
					if x.DType().IsFloat() {
						out[i] = c.Tanh(x)
					}
				}
				return out
			})
		}
		return nn.NewSequential(next(), next(), next(), tuples(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
			var sum *torch.Tensor
			for _, x := range xs {
				if y := c.To(x, torch.Float32); sum == nil {
					sum = y
				} else {
					sum = c.Mul(c.AddScalar(sum, 1), c.AddScalar(y, 1))
				}
			}
			return []*torch.Tensor{sum}
		}))
	}
	q := trial{model: build, rows: 5, loss: squares{}, targets: one(normal(5, 3)), inputs: func(c *torch.Ctx) (out []part) {
		for i, d := range types {
			x := c.To(normal(5, 3)(c, i), d)
			out = append(out, part{t: x.SetRequiresGrad(d.IsFloat())})
		}
		return out
	}}
	want := q.check(t, 3)
	for _, i := range []int{1, 3, 4} {
		if want.values[fmt.Sprintf("gradient of input %d of step 0", i)] == nil {
			t.Errorf("the input of %v has no gradient", types[i])
		}
	}
	// What goes out has the types that came in, and the rows of the whole batch.
	p := started(t, nn.NewSequential(tuples(func(_ *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor { return append([]*torch.Tensor{}, xs...) }), tuples(func(_ *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor { return xs[:] })),
		pipe.Config{Balance: []int{1, 1}, Chunks: 2})
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	for _, n := range []int{1, len(types)} { // a tuple of one is one
		in := q.inputs(c)[:n]
		result, err := p.Infer(context.Background(), batchOf(in, nil))
		if err != nil || len(result.Output) != n {
			t.Fatalf("%d outputs, want %d; %v", len(result.Output), n, err)
		}
		for i, y := range result.Output {
			if y.DType() != types[i] || !reflect.DeepEqual(torch.Bytes(y), torch.Bytes(in[i].t)) || y.RequiresGrad() {
				t.Errorf("output %d is %v, %v went in", i, y, in[i].t)
			}
			y.Free()
		}
	}
}

// Forward gives a tuple, of which any part may have a gradient; Backward takes them as they are,
// with holes.
func TestBackwardOfATuple(t *testing.T) {
	torchtest.Check(t)
	build := func() *nn.Sequential {
		l := &tupled{}
		a, b := l.Param("a", constantly(3), 1), l.Param("b", constantly(5), 1)
		l.f = func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
			return []*torch.Tensor{c.Argmax(xs[0], 1), c.Mul(xs[0], a.Tensor()), c.Mul(xs[0], b.Tensor())}
		}
		return nn.NewSequential(nn.NewIdentity(), nn.Tuple(l, l.ForwardTuple))
	}
	for _, row := range []struct {
		reason string
		a, b   float64 // gradients given for the outputs; 0 is none
		lie    bool    // they lie in Outputs, instead of being given
	}{{"both", 1, 2, false}, {"the second alone", 0, 2, false}, {"both, left in the outputs", 1, 2, true},
		{"the first, left there", 1, 0, true}} {
		for _, policy := range policies {
			model := build()
			p := started(t, model, pipe.Config{Balance: []int{1, 1}, Chunks: 2, Checkpoint: policy})
			c := torch.NewCtx(torch.Options{})
			run, err := p.Forward(context.Background(), pipe.Batch{Input: pipe.Rows(c.Ones(torch.Float32, 4, 1))})
			if err != nil {
				t.Fatal(err)
			}
			grads := make([]*torch.Tensor, 3)
			for i, v := range []float64{0, row.a, row.b} {
				if v != 0 {
					grads[i] = c.Fill_(c.EmptyLike(run.Output()[i]), v)
				}
			}
			if row.lie {
				for i, g := range grads {
					if g != nil {
						run.Output()[i].SetGradOf(g)
					}
				}
				grads = nil
			}
			if err := run.Backward(context.Background(), grads...); err != nil {
				t.Fatalf("%s: %v", row.reason, err)
			}
			for i, want := range []float64{row.a * 4, row.b * 4} {
				got := floats(gradient(nn.Params(model)[i]))
				if want == 0 && got == nil {
					continue
				}
				if !reflect.DeepEqual(got, []float32{float32(want)}) {
					t.Errorf("%s, %v: the gradient of parameter %d is %v, want %v", row.reason, policy, i, got, want)
				}
			}
			c.Close()
			nn.ZeroGrads(model)
		}
	}
}

// Outputs need not have the rows of the input: a language model gives a row for each token. The
// gradient of the whole output is cut where the outputs were joined.
func TestOutputsWithOtherRows(t *testing.T) {
	torchtest.Check(t)
	for name, f := range map[string]func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor{
		"a row for each element": func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Reshape(x, -1, 1) },
		"one row":                func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.SumDim(x, []int64{0}, true) },
		"as many as came":        func(_ *nn.Ctx, x *torch.Tensor) *torch.Tensor { return x },
	} {
		for _, cfg := range configs(2, 3) {
			l := &call{}
			l.p = l.Param("w", constantly(2), 3)
			l.f = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return f(c, c.Mul(x, l.p.Tensor())) }
			model := nn.NewSequential(nn.NewIdentity(), l)
			p := started(t, model, cfg)
			c := torch.NewCtx(torch.Options{Threads: 1})
			x := whole(c, 1, 7, 3)
			run, err := p.Forward(context.Background(), pipe.Batch{Input: pipe.Rows(x)})
			if err != nil {
				t.Fatal(err)
			}
			g := whole(c, 2, run.Output()[0].Shape()...)
			if err := run.Backward(context.Background(), g); err != nil {
				t.Fatalf("%s, %s: %v", name, named(cfg), err)
			}
			// In Go: which output takes what from an element of the input.
			want := make([]float32, 3)
			xs, gs := torch.Values[float32](x), torch.Values[float32](g)
			for i, v := range xs {
				row, column := i/3, i%3
				at := i
				if name == "one row" {
					at = []int{0, 0, 0, 1, 1, 2, 2}[row]*3 + column
				}
				want[column] += v * gs[at]
			}
			if got := floats(gradient(nn.Params(model)[0])); !reflect.DeepEqual(got, want) {
				t.Errorf("%s, %s: gradient %v, want %v", name, named(cfg), got, want)
			}
			c.Close()
			nn.ZeroGrads(model)
		}
	}
}
