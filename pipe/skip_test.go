package pipe_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// What a skip may be, on every balance, with every policy: losses, gradients of each parameter and
// of the input are the plain loop's.
func TestSkips(t *testing.T) {
	torchtest.Check(t)
	conv := func() nn.Layer { return nn.NewConv2d(2, 2, nn.Square(1), nn.ConvConfig{}) }
	images := trial{rows: 5, inputs: wanted(normal(5, 2, 3, 3)), targets: one(normal(5, 2, 3, 3)),
		loss: squares{}}
	add := func(names ...string) nn.Layer {
		return popping(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			for _, n := range names {
				x = c.Add(c.Op("aten::tanh", x), c.Pop(n))
			}
			return x
		}, names...)
	}
	stash := func(names ...string) nn.Layer {
		return stashing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			for _, n := range names {
				x = c.Op("aten::tanh", x)
				c.Stash(n, x)
			}
			return x
		}, names...)
	}
	isolated := func(space nn.Namespace, layers ...*call) (out []nn.Layer) {
		for _, l := range layers {
			l.Isolate(space)
			out = append(out, l)
		}
		return out
	}
	for _, row := range []struct {
		name  string
		data  trial
		model func() *nn.Sequential
	}{
		{"from the first of three layers to the last", images, func() *nn.Sequential {
			// Each has a convolution before what it does with the skip.
			first := stashing(nil, "1to3")
			in := conv()
			first.Child("conv", in)
			first.f = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				c.Stash("1to3", x)
				return c.Run(x, in)
			}
			last := popping(nil, "1to3")
			out := conv()
			last.Child("conv", out)
			last.f = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				return c.Add(c.Run(x, out), c.Pop("1to3"))
			}
			return nn.NewSequential(first, conv(), last)
		}},
		{"to several layers and stages", images, func() *nn.Sequential {
			return nn.NewSequential(conv(), stash("a"), add("a"), conv(), add("a"), add("a"))
		}},

		{"of one name in two namespaces", images, func() *nn.Sequential {
			one, two := nn.NewNamespace(), nn.NewNamespace()
			block := func(space nn.Namespace) []nn.Layer {
				return isolated(space, stash("skip").(*call), add("skip").(*call))
			}
			a, b := block(one), block(two)
			return nn.NewSequential(a[0], b[0], conv(), a[1], b[1])
		}},
		{"absent for every other micro-batch", images, func() *nn.Sequential {
			return nn.NewSequential(conv(), stashing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				if c.MicroBatch%2 == 0 {
					c.Stash("a", x)
				} else {
					c.Stash("a", nil)
				}
				return c.Op("aten::tanh", x)
			}, "a"), conv(), popping(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				skip := c.Pop("a")
				if (skip == nil) != (c.MicroBatch%2 == 1) {
					panic("the skip of another micro-batch")
				}
				if skip == nil {
					return x
				}
				return c.Mul(x, skip)
			}, "a"))
		}},

		{"of integers", images, func() *nn.Sequential {
			return nn.NewSequential(conv(),
				stashing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
					c.Stash("largest", c.Argmax(x, 1))
					return x
				}, "largest"), conv(),
				popping(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
					return c.Mul(x, c.Reshape(c.To(c.Pop("largest"), torch.Float32), -1, 1, 3, 3))
				}, "largest"))
		}},

		{"beside layers that overwrite", images, func() *nn.Sequential {
			return nn.NewSequential(conv(), stash("a"), nn.NewReLUInPlace(), conv(), add("a"),
				nn.NewReLUInPlace())
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			torchtest.Check(t)
			q := row.data
			q.model = row.model
			q.check(t, 3)
		})
	}
}

// tied is a language model in small: the embedding's weight is that of the head, and where there is
// a middle, of that as well.
func tied(middle, frozen bool) *nn.Sequential {
	e := nn.NewEmbedding(6, 4, nn.EmbeddingConfig{})
	if frozen {
		e.Weight.SetTrainable(false)
	}
	use := func(f func(c *nn.Ctx, x, w *torch.Tensor) *torch.Tensor) *call {
		l := &call{}
		l.p = l.Share("weight", e.Weight)
		l.f = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return f(c, x, l.p.Tensor()) }
		return l
	}
	model := nn.NewSequential(e, nn.NewLinear(4, 4))
	if middle {
		model.Add("middle", use(func(c *nn.Ctx, x, w *torch.Tensor) *torch.Tensor {
			return c.Op("aten::tanh", c.Matmul(c.PlainLinear(x, w, nil), w))
		}))
	}
	return model.Add("norm", nn.NewLayerNorm([]int64{4}, nn.NormConfig{})).Add("head",
		use(func(c *nn.Ctx, x, w *torch.Tensor) *torch.Tensor { return c.PlainLinear(x, w, nil) }))
}

// The copies follow the parameter from run to run, whatever changed it: an optimizer, new bytes, a
// new tensor.
func TestTiedParameterIsFollowed(t *testing.T) {
	torchtest.Check(t)
	for _, shared := range []bool{false, true} {
		model := tied(true, false)
		cfg := pipe.Config{Balance: []int{1, 2, 2}, Chunks: 2}
		if shared {
			cfg.Devices = make([]torch.Device, 3)
		}
		p := started(t, model, cfg)
		c := torch.NewCtx(torch.Options{Threads: 1})
		defer c.Close()
		x := classes(6, 6)(c, 0)
		w := nn.State(model)[0].Param
		same := func(when string) {
			t.Helper()
			got := must.Get(eval(p, context.Background(), x))(t)
			defer got.Free()
			fresh := tied(true, false)
			defer nn.Free(fresh)
			for i, s := range nn.State(fresh) {
				s.SetTensor(c.Keep(c.Clone(c.Detach(nn.State(model)[i].Tensor()))))
			}
			var want []float32 // of each micro-batch
			for row := int64(0); row < x.Size(0); row += x.Size(0) / 2 {
				want = append(want, torch.Values[float32](fresh.Forward(nn.NewCtx(c, nn.Config{}),
					c.Narrow(x, 0, row, x.Size(0)/2)))...)
			}
			if !slices.Equal(torch.Values[float32](got), want) {
				t.Errorf("same device %v, %s: the output is not that of the changed weight", shared, when)
			}
		}
		same("at first")
		c.MulScalar_(c.Detach(w.Tensor()), 2)
		same("scaled in place")
		values := torch.Bytes(w.Tensor())
		values[3] ^= 0x81 // sign and exponent of the first
		must.Do(t, torch.SetBytes(w.Tensor(), values))
		same("with other bytes")
		w.SetTensor(c.Keep(normal(6, 4)(c, 9)))
		same("with another tensor")
	}
}

// A buffer that stages share would not be the same on both: batch norms whose running statistics
// are shared must stay together.
func TestBuffersAreNotSharedAcrossStages(t *testing.T) {
	torchtest.Check(t)
	build := func() *nn.Sequential {
		first, second := &call{}, &call{}
		mean := first.Buffer("mean", torch.Float32, nn.Zeros, 4)
		second.Share("mean", mean)
		first.f = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Add(x, mean.Tensor()) }
		second.f = first.f
		return nn.NewSequential(first, second, nn.NewLinear(4, 4))
	}
	var refused *pipe.ConfigError
	if _, err := pipe.New(build(), pipe.Config{Balance: []int{1, 2}}); !errors.As(err,
		&refused) || refused.Field != "Balance" ||
		!strings.Contains(err.Error(), `buffer "1.mean" of stage 1 is also used on stage 0`) {
		t.Errorf("got %v", err)
	}
	started(t, build(), pipe.Config{Balance: []int{2, 1}})
}

// tiedGradient makes a step of a tied model and returns the gradient of the shared weight, which it
// drops.
func tiedGradient(t *testing.T, p *pipe.Pipe) ([]byte, error) {
	t.Helper()
	c := torch.NewCtx(torch.Options{Threads: 1})
	defer c.Close()
	_, err := p.Step(context.Background(),
		pipe.Batch{Input: pipe.Rows(classes(6, 6)(c, 0)),
			Target: pipe.Rows(classes(6, 6)(c, 1))}, nn.CrossEntropy())
	defer nn.ZeroGrads(p.Model())
	return gradient(nn.Params(p.Model())[0]), err
}

// A backward that fails after a use of a replica once left the gradient of that use in the
// replica, where no ZeroGrads finds it: the next step counted it as its own.
func TestTiedParameterAfterAFailedBackward(t *testing.T) {
	torchtest.Check(t)
	for _, cfg := range []pipe.Config{{}, {Devices: make([]torch.Device, 2)}} {
		fail := false
		e := nn.NewEmbedding(6, 4, nn.EmbeddingConfig{})
		head := &call{}
		head.p = head.Share("weight", e.Weight)
		head.f = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			return c.PlainLinear(x, head.p.Tensor(), nil)
		}
		bad := &call{}
		bad.p = bad.Share("weight", e.Weight)
		bad.f = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			if fail && c.Recomputing {
				panic("fails in backward")
			}
			return c.Matmul(c.PlainLinear(x, bad.p.Tensor(), nil), bad.p.Tensor())
		}
		cfg.Balance, cfg.Chunks, cfg.Checkpoint = []int{1, 3}, 2, pipe.Never
		p := started(t, nn.NewSequential(e, nn.NewLinear(4, 4), nn.Checkpointed(bad), head), cfg)
		want := must.Get(tiedGradient(t, p))(t)
		fail = true
		if _, err := tiedGradient(t, p); err == nil {
			t.Fatal("the step did not fail")
		}
		fail = false
		if got, err := tiedGradient(t, p); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%+v: after a failed step the gradient is %v, %v; want %v", cfg, floats(got), err,
				floats(want))
		}
	}
}

// Two pipes of one model would each put replicas, or none, where the other works: gradients once
// went lost in silence.
func TestTiedModelInTwoPipes(t *testing.T) {
	torchtest.Check(t)
	model := tied(true, false)
	whole := started(t, model, pipe.Config{Chunks: 2})
	want := must.Get(tiedGradient(t, whole))(t)
	parts := started(t, model, pipe.Config{Balance: []int{1, 2, 2}, Chunks: 2})
	if got, err := tiedGradient(t, parts); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the second pipe has another gradient; %v", err)
	}
	if _, err := tiedGradient(t, whole); err == nil ||
		!strings.Contains(err.Error(), "Close that pipe first") {
		t.Errorf("the first pipe: got %v", err)
	}
	for _, balance := range [][]int{{5}, {2, 3}} {
		if _, err := pipe.New(model, pipe.Config{Balance: balance}); err == nil ||
			!strings.Contains(err.Error(), "Close that pipe first") {
			t.Errorf("a third pipe: got %v", err)
		}
	}
	parts.Close()
	if got, err := tiedGradient(t, whole); err != nil || !bytes.Equal(got, want) {
		t.Errorf("after Close of the second the first has another gradient; %v", err)
	}
}

// Tuples of any types come in, cross every stage and go out; those of floats have gradients.
func TestTuplesOfMixedTypes(t *testing.T) {
	torchtest.Check(t)
	types := []torch.DType{torch.Int64, torch.Float32, torch.Bool, torch.Float64, torch.BFloat16,
		torch.Uint8, torch.Int32}
	build := func() *nn.Sequential {
		next := func() nn.Layer { // turns the tuple by one place and changes what has gradients
			return tuples(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
				out := append([]*torch.Tensor{}, xs[1:]...)
				out = append(out, xs[0])
				for i, x := range out {
					if x.DType().IsFloat() {
						out[i] = c.Op("aten::tanh", x)
					}
				}
				return out
			})
		}
		return nn.NewSequential(next(), next(), next(),
			tuples(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
				var sum *torch.Tensor
				for _, x := range xs {
					if y := c.To(x, torch.Float32); sum == nil {
						sum = y
					} else {
						sum = c.Mul(c.Op("aten::add.Scalar", sum, 1), c.Op("aten::add.Scalar", y, 1))
					}
				}
				return []*torch.Tensor{sum}
			}))
	}
	q := trial{model: build, rows: 5, loss: squares{}, targets: one(normal(5, 3)),
		inputs: func(c *torch.Ctx) (out []part) {
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
}

// Outputs need not have the rows of the input: a language model gives a row for each token. The
// gradient of the whole output is cut where the outputs were joined.
func TestOutputsWithOtherRows(t *testing.T) {
	torchtest.Check(t)
	for name, f := range map[string]func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor{
		"a row for each element": func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			return c.Reshape(x, -1, 1)
		},
		"one row": func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			return c.Op("aten::sum.dim_IntList", x, []int64{0}, true)
		},
		"as many as came": func(_ *nn.Ctx, x *torch.Tensor) *torch.Tensor { return x },
	} {
		for _, cfg := range configs(2, 3) {
			l := &call{}
			l.p = l.Param("w", constantly(2), 3)
			l.f = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return f(c, c.Mul(x, l.p.Tensor())) }
			model := nn.NewSequential(nn.NewIdentity(), l)
			p := started(t, model, cfg)
			c := torch.NewCtx(torch.Options{Threads: 1})
			x := whole(c, 1, 7, 3)
			run := must.Get(p.Forward(context.Background(), pipe.Batch{Input: pipe.Rows(x)}))(t)
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
