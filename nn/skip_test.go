package nn_test

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/torch"
)

type forward = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor

// lambda is a layer that a test writes where it needs it.
type lambda struct {
	nn.Base
	f forward
}

func (l *lambda) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return l.f(c, x) }

// declaring makes a lambda that declares skips, names separated by spaces. Its children are for f
// to run.
func declaring(stashes, pops string, f forward, children ...nn.Layer) *lambda {
	l := &lambda{f: f}
	l.Stashes(strings.Fields(stashes)...)
	l.Pops(strings.Fields(pops)...)
	for i, child := range children {
		l.Child(fmt.Sprint(i), child)
	}
	return l
}

func doing(f forward) *lambda { return declaring("", "", f) }

// composite makes a layer, no Sequential, that runs its children.
func composite(children ...nn.Layer) *lambda {
	return declaring("", "", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Run(x, children...) }, children...)
}

// stashing stashes its input and returns it.
func stashing(name string) *lambda {
	return declaring(name, "", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		c.Stash(name, x)
		return x
	})
}

// popping adds what it pops, if that is there.
func popping(name string) *lambda {
	return declaring("", name, func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		if skip := c.Pop(name); skip != nil {
			return c.Add(x, skip)
		}
		return x
	})
}

func isolated(space nn.Namespace, l *lambda) *lambda {
	l.Isolate(space)
	return l
}

// results are the output and all gradients, by name; a gradient that is not there is not in it.
func results(c *torch.Ctx, model *nn.Sequential, f forward) map[string][]float32 {
	c.SetSeed(5)
	x := c.Normal_(c.Empty(torch.Float32, 3, 4), 0, 1)
	up := c.Normal_(c.Empty(torch.Float32, 3, 4), 0, 1)
	x.SetRequiresGrad(true)
	y := f(nn.NewCtx(c, nn.Config{Training: true}), x)
	out := map[string][]float32{"output": torch.Values[float32](y)}
	if !c.Grad() {
		return out
	}
	c.Backward([]*torch.Tensor{y}, []*torch.Tensor{up}, false)
	note := func(name string, t *torch.Tensor) {
		if g := c.GradOf(t); g != nil {
			out[name] = torch.Values[float32](g)
		}
	}
	note("input", x)
	x.SetGradOf(nil)
	for _, p := range nn.Params(model) {
		note(p.Name, p.Tensor())
	}
	nn.ZeroGrads(model)
	return out
}

// differs names a result that is not the same to within a tolerance, relative to the largest in it.
// It returns "" where there is none.
func differs(got, want map[string][]float32, tolerance float64) string {
	if len(got) != len(want) {
		return fmt.Sprintf("%d results and %d", len(got), len(want))
	}
	for name, w := range want {
		g := got[name]
		if len(g) != len(w) {
			return fmt.Sprintf("%s: %d values and %d", name, len(g), len(w))
		}
		largest := 0.0
		for _, v := range w {
			largest = max(largest, math.Abs(float64(v)))
		}
		for i := range w {
			if d := math.Abs(float64(g[i]) - float64(w[i])); !(d <= tolerance*largest) {
				return fmt.Sprintf("%s: %v and %v", name, g[i], w[i])
			}
		}
	}
	return ""
}

func TestSkipsComputeWhatTheNetworkWrittenOutComputes(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ns := nn.NewNamespace()
	tanh := func() nn.Layer { return nn.NewTanh() }
	index := func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Argmax(x, 1) }
	for _, row := range []struct {
		reason string
		// 0 where no gradient has more than two summands, so that there is one order to sum in
		tolerance float64
		build     func(l []*nn.Linear, e *nn.Embedding) (*nn.Sequential, forward)
	}{
		{"one skip", 0, func(l []*nn.Linear, _ *nn.Embedding) (*nn.Sequential, forward) {
			return nn.NewSequential(l[0], stashing("a"), l[1], tanh(), popping("a"), l[2]), func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				h := l[0].Forward(c, x)
				return l[2].Forward(c, c.Add(c.Tanh(l[1].Forward(c, h)), h))
			}
		}},
		{"two that cross", 0, func(l []*nn.Linear, _ *nn.Embedding) (*nn.Sequential, forward) {
			return nn.NewSequential(l[0], stashing("a"), l[1], stashing("b"), l[2], popping("a"), l[3], popping("b")), func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				a := l[0].Forward(c, x)
				b := l[1].Forward(c, a)
				return c.Add(l[3].Forward(c, c.Add(l[2].Forward(c, b), a)), b)
			}
		}},
		{"one around the other, of one name in two namespaces", 0, func(l []*nn.Linear, _ *nn.Embedding) (*nn.Sequential, forward) {
			return nn.NewSequential(l[0], stashing("a"), l[1], isolated(ns, stashing("a")), l[2], isolated(ns, popping("a")), l[3], popping("a")),
				func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
					a := l[0].Forward(c, x)
					b := l[1].Forward(c, a)
					return c.Add(l[3].Forward(c, c.Add(l[2].Forward(c, b), b)), a)
				}
		}},
		{"out of one nested Sequential and into another", 0, func(l []*nn.Linear, _ *nn.Embedding) (*nn.Sequential, forward) {
			return nn.NewSequential(nn.NewSequential(l[0], stashing("a")), nn.NewSequential(l[1], nn.NewSequential(popping("a"), l[2]))), func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				h := l[0].Forward(c, x)
				return l[2].Forward(c, c.Add(l[1].Forward(c, h), h))
			}
		}},
		{"from a layer's child to another's grandchild", 0, func(l []*nn.Linear, _ *nn.Embedding) (*nn.Sequential, forward) {
			return nn.NewSequential(composite(l[0], stashing("a"), l[1]), composite(l[2], composite(popping("a")))), func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				h := l[0].Forward(c, x)
				return c.Add(l[2].Forward(c, l[1].Forward(c, h)), h)
			}
		}},
		{"from a child to its own parent", 0, func(l []*nn.Linear, _ *nn.Embedding) (*nn.Sequential, forward) {
			children := []nn.Layer{l[0], stashing("a"), l[1]}
			parent := declaring("", "a", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				return c.Add(c.Run(x, children...), c.Pop("a"))
			}, children...)
			return nn.NewSequential(parent), func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				h := l[0].Forward(c, x)
				return c.Add(l[1].Forward(c, h), h)
			}
		}},
		{"from a parent to its own child", 0, func(l []*nn.Linear, _ *nn.Embedding) (*nn.Sequential, forward) {
			children := []nn.Layer{l[1], popping("a"), l[2]}
			parent := declaring("a", "", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				c.Stash("a", x)
				return c.Run(x, children...)
			}, children...)
			return nn.NewSequential(l[0], parent), func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				h := l[0].Forward(c, x)
				return l[2].Forward(c, c.Add(l[1].Forward(c, h), h))
			}
		}},
		{"one stash and three pops, two in children of one layer", 1e-6, func(l []*nn.Linear, _ *nn.Embedding) (*nn.Sequential, forward) {
			return nn.NewSequential(l[0], stashing("a"), l[1], composite(popping("a"), l[2], popping("a")), popping("a")), func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				h := l[0].Forward(c, x)
				y := c.Add(l[2].Forward(c, c.Add(l[1].Forward(c, h), h)), h)
				return c.Add(y, h)
			}
		}},
		{"what is popped is used twice", 1e-6, func(l []*nn.Linear, _ *nn.Embedding) (*nn.Sequential, forward) {
			square := declaring("", "a", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				skip := c.Pop("a")
				return c.Add(x, c.Mul(skip, skip))
			})
			return nn.NewSequential(l[0], stashing("a"), l[1], square), func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				h := l[0].Forward(c, x)
				return c.Add(l[1].Forward(c, h), c.Mul(h, h))
			}
		}},
		{"integers", 0, func(l []*nn.Linear, e *nn.Embedding) (*nn.Sequential, forward) {
			stash := declaring("a", "", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				c.Stash("a", index(c, x))
				return x
			})
			look := declaring("", "a", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Add(x, c.Run(c.Pop("a"), e)) }, e)
			return nn.NewSequential(l[0], stash, l[1], look), func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				h := l[0].Forward(c, x)
				return c.Add(l[1].Forward(c, h), e.Forward(c, index(c, h)))
			}
		}},
		{"popped and not used", 0, func(l []*nn.Linear, _ *nn.Embedding) (*nn.Sequential, forward) {
			ignore := declaring("", "a", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				c.Pop("a")
				return x
			})
			return nn.NewSequential(l[0], stashing("a"), l[1], ignore), func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return l[1].Forward(c, l[0].Forward(c, x)) }
		}},
		{"popped and nothing else used", 0, func(l []*nn.Linear, _ *nn.Embedding) (*nn.Sequential, forward) {
			only := declaring("", "a", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Pop("a") })
			return nn.NewSequential(l[0], stashing("a"), l[1], only, l[2]), func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return l[2].Forward(c, l[0].Forward(c, x)) }
		}},
		{"absent", 0, func(l []*nn.Linear, _ *nn.Embedding) (*nn.Sequential, forward) {
			absent := declaring("a", "", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				c.Stash("a", nil)
				return x
			})
			return nn.NewSequential(l[0], absent, l[1], popping("a"), popping("a")), func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return l[1].Forward(c, l[0].Forward(c, x)) }
		}},
		{"the input of the model", 0, func(l []*nn.Linear, _ *nn.Embedding) (*nn.Sequential, forward) {
			return nn.NewSequential(stashing("a"), l[0], popping("a")), func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Add(l[0].Forward(c, x), x) }
		}},
		{"something that is not handed on", 0, func(l []*nn.Linear, _ *nn.Embedding) (*nn.Sequential, forward) {
			aside := declaring("a", "", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				c.Stash("a", c.Sigmoid(x))
				return x
			})
			return nn.NewSequential(l[0], aside, l[1], popping("a")), func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				h := l[0].Forward(c, x)
				return c.Add(l[1].Forward(c, h), c.Sigmoid(h))
			}
		}},
	} {
		t.Run(row.reason, func(t *testing.T) {
			c := torchtest.New(t, torch.Options{Grad: true})
			linears, embedding := make([]*nn.Linear, 4), nn.NewEmbedding(4, 4, nn.EmbeddingConfig{})
			for i := range linears {
				linears[i] = nn.NewLinear(4, 4)
			}
			model, plain := row.build(linears, embedding)
			nn.Materialise(c, nn.State(model), 1)
			defer nn.Free(model)
			for _, grad := range []bool{true, false} {
				c.SetGrad(grad)
				got, want := results(c, model, model.Forward), results(c, model, plain)
				if d := differs(got, want, row.tolerance); d != "" {
					t.Errorf("with gradients: %v: %s", grad, d)
				}
				if grad && len(want) < 4 {
					t.Errorf("only %d results were compared", len(want))
				}
			}
		})
	}
}

// A model holds nothing of a run, skips neither: forwards at the same time do not see each other's.
func TestSkipsOfConcurrentForwardsAreApart(t *testing.T) {
	torchtest.Check(t)
	model := nn.NewSequential(stashing("a"), nn.NewTanh(), popping("a"))
	const runs = 8
	done := make(chan string, runs)
	for i := range runs {
		go func() {
			c := torch.NewCtx(torch.Options{Threads: 1})
			defer c.Close()
			got := torch.Values[float32](model.Forward(nn.NewCtx(c, nn.Config{}), c.Fill_(c.Empty(torch.Float32, 2), float64(i))))
			if want := float32(math.Tanh(float64(i))) + float32(i); math.Abs(float64(got[0]-want)) > 1e-5 || !slices.Equal(got[:1], got[1:]) {
				done <- fmt.Sprintf("run %d gave %v, want %v", i, got, want)
				return
			}
			done <- ""
		}()
	}
	for range runs {
		if s := <-done; s != "" {
			t.Error(s)
		}
	}
}
