package pipe_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// What a skip may be, on every balance, with every policy: losses, gradients of each parameter and
// of the input are the plain loop's.
func TestSkips(t *testing.T) {
	torchtest.Check(t)
	conv := func() *nn.Conv2d { return nn.NewConv2d(2, 2, nn.Square(1), nn.Conv2dConfig{}) }
	images := trial{rows: 5, inputs: wanted(normal(5, 2, 3, 3)), targets: one(normal(5, 2, 3, 3)), loss: squares{}}
	tokens := trial{rows: 5, inputs: one(classes(5, 7)), targets: one(normal(5, 4)), loss: squares{}}
	add := func(names ...string) nn.Layer {
		return popping(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			for _, n := range names {
				x = c.Add(c.Tanh(x), c.Pop(n))
			}
			return x
		}, names...)
	}
	stash := func(names ...string) nn.Layer {
		return stashing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			for _, n := range names {
				x = c.Tanh(x)
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
			first.f = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { c.Stash("1to3", x); return c.Run(x, in) }
			last := popping(nil, "1to3")
			out := conv()
			last.Child("conv", out)
			last.f = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Add(c.Run(x, out), c.Pop("1to3")) }
			return nn.NewSequential(first, conv(), last)
		}},
		{"to several layers and stages", images, func() *nn.Sequential {
			return nn.NewSequential(conv(), stash("a"), add("a"), conv(), add("a"), add("a"))
		}},
		{"crossing each other", images, func() *nn.Sequential {
			return nn.NewSequential(stash("a", "b"), stash("c"), conv(), add("b", "c"), add("a"))
		}},
		{"inside each other, in nested layers", images, func() *nn.Sequential {
			return nn.NewSequential(nn.NewSequential(stash("a"), conv()),
				nn.NewSequential(stash("b"), nn.NewSequential(conv(), add("b"))), add("a"))
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
				return c.Tanh(x)
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
		{"absent for all", images, func() *nn.Sequential {
			return nn.NewSequential(conv(), stashing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { c.Stash("a", nil); return x }, "a"), conv(),
				popping(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { c.Pop("a"); return c.Tanh(x) }, "a"))
		}},
		{"popped and not used", images, func() *nn.Sequential {
			return nn.NewSequential(conv(), stash("a"), conv(),
				popping(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { c.Pop("a"); return c.Tanh(x) }, "a"))
		}},
		{"of integers", images, func() *nn.Sequential {
			return nn.NewSequential(conv(), stashing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { c.Stash("largest", c.Argmax(x, 1)); return x }, "largest"), conv(),
				popping(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
					return c.Mul(x, c.Reshape(c.To(c.Pop("largest"), torch.Float32), -1, 1, 3, 3))
				}, "largest"))
		}},
		{"detached", images, func() *nn.Sequential {
			return nn.NewSequential(conv(), stashing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { c.Stash("a", c.Detach(x)); return x }, "a"), conv(), add("a"))
		}},
		{"of the batch itself, past an embedding", tokens, func() *nn.Sequential {
			again := popping(nil, "tokens")
			second := nn.NewEmbedding(7, 4, nn.EmbeddingConfig{})
			again.Child("embedding", second)
			again.f = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				return c.Mul(c.Tanh(x), c.Run(c.Pop("tokens"), second))
			}
			return nn.NewSequential(stashing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { c.Stash("tokens", x); return x }, "tokens"),
				nn.NewEmbedding(7, 4, nn.EmbeddingConfig{}), nn.NewLinear(4, 4), again)
		}},
		{"around an embedding that is used twice", tokens, func() *nn.Sequential {
			e := nn.NewEmbedding(7, 4, nn.EmbeddingConfig{})
			out := popping(nil, "vectors")
			w := out.Share("weight", e.Weight)
			out.f = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				return c.Matmul(c.PlainLinear(c.Add(x, c.Pop("vectors")), w.Tensor(), nil), w.Tensor())
			}
			return nn.NewSequential(e, stashing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { c.Stash("vectors", x); return x }, "vectors"), nn.NewTanh(), out)
		}},
		{"beside layers that overwrite", images, func() *nn.Sequential {
			return nn.NewSequential(conv(), stash("a"), nn.NewReLUInPlace(), conv(), add("a"), nn.NewReLUInPlace())
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

// A skip moves straight from the stage that stashes it to the one that pops it, in both directions:
// it is sent once and received once.
func TestSkipsMoveStraight(t *testing.T) {
	torchtest.Check(t)
	p := started(t, fourStages(), pipe.Config{Balance: []int{1, 1, 1, 1}, Chunks: 3, Record: true})
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	result, err := p.Step(context.Background(),
		pipe.Batch{Input: pipe.Rows(normal(6, 4)(c, 0)), Target: pipe.Rows(normal(6, 4)(c, 1))}, squares{})
	if err != nil {
		t.Fatal(err)
	}
	var seen []string
	for _, e := range result.Timeline.Events {
		if e.Action.Kind.Transfer() {
			seen = append(seen, e.Action.String())
		}
	}
	for _, a := range []string{"0F2>3", "0>3F2", "3B2>0", "3>0B2"} {
		if n := count(seen, a); n != 1 {
			t.Errorf("%s happened %d times, want once; %v", a, n, seen)
		}
	}
	// Three pairs of neighbours and the skip, both ways, sent and received.
	if want := 3 * 4 * 2 * 2; len(seen) != want {
		t.Errorf("%d sends and receives, want %d: %v", len(seen), want, seen)
	}
}

// fourStages has a skip from the first of its four layers to the last.
func fourStages() *nn.Sequential {
	return nn.NewSequential(stashing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { c.Stash("a", c.Tanh(x)); return x }, "a"), nn.NewLinear(4, 4), nn.NewLinear(4, 4),
		popping(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Add(x, c.Pop("a")) }, "a"))
}

func count(list []string, s string) (n int) {
	for _, v := range list {
		if v == s {
			n++
		}
	}
	return n
}

// A model whose skips do not match is refused before anything runs or exists, with all that is
// wrong with it at once.
func TestSkipsThatDoNotMatch(t *testing.T) {
	torchtest.Check(t)
	pass := func(_ *nn.Ctx, x *torch.Tensor) *torch.Tensor { return x }
	both := stashing(pass, "loop")
	both.Pops("loop")
	model := nn.NewSequential(nn.NewLinear(3, 3), popping(pass, "early"), stashing(pass, "early"),
		stashing(pass, "lost"), popping(pass, "found"),
		stashing(pass, "twice"), stashing(pass, "twice"), popping(pass, "twice"), both)
	_, err := pipe.New(model, pipe.Config{Balance: []int{4, 5}})
	var e *nn.SkipError
	if !errors.As(err, &e) {
		t.Fatalf("got %v, want a *nn.SkipError", err)
	}
	for _, want := range []string{
		`"1" pops "early" before "2" stashes it`,
		`"3" stashes "lost", which no layer pops`,
		`"4" pops "found", which no layer stashes`,
		`"5" and "6" both stash "twice"; Isolate one in a namespace of its own`,
		`"8" declares both the stash and the pop of "loop"`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	if len(e.Problems) != 5 || !strings.HasPrefix(err.Error(), "pipe: ") {
		t.Errorf("%d problems, want 5: %v", len(e.Problems), err)
	}
	if nn.State(model)[0].Exists() {
		t.Error("parameters were made")
	}
}

// A layer that overwrites a skip without saying so is found out, on whichever stage it does
// it; the error names layer or skip and says what to do.
func TestSkipsThatAreOverwritten(t *testing.T) {
	torchtest.Check(t)
	overwrite := func(c *nn.Ctx, x *torch.Tensor) { c.NoGrad(func() { c.AddScalar_(c.Detach(x), 1) }) }
	stash := func() nn.Layer {
		return stashing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { y := c.Tanh(x); c.Stash("a", y); return y }, "a")
	}
	add := func() nn.Layer {
		return popping(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Add(x, c.Pop("a")) }, "a")
	}
	for _, row := range []struct {
		reason string
		model  *nn.Sequential
		want   []string
	}{
		{"while it waits to leave", nn.NewSequential(stash(),
			layer(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { overwrite(c, x); return x }), nn.NewTanh(), add()),
			[]string{"stage 0", `skip "a"`, "Clone"}},
		{"by the layer that pops it, though another needs it", nn.NewSequential(stash(), nn.NewTanh(),
			popping(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				skip := c.Pop("a")
				overwrite(c, skip)
				return c.Add(x, skip)
			}, "a"), add()),
			[]string{"stage 1", `layer "2" overwrote the skip "a"`, "Clone"}},
	} {
		for _, policy := range policies {
			p := started(t, row.model, pipe.Config{Balance: []int{2, 2}, Chunks: 2, Checkpoint: policy})
			c := torch.NewCtx(torch.Options{})
			_, err := p.Step(context.Background(),
				pipe.Batch{Input: pipe.Rows(normal(4, 3)(c, 0)), Target: pipe.Rows(normal(4, 3)(c, 1))}, squares{})
			for _, want := range row.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%s, %v: got %v, want %q", row.reason, policy, err, want)
				}
			}
			c.Close()
		}
	}
}
