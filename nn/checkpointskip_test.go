package nn_test

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/torch"
)

// A model with any of its layers wrapped, wrappers in wrappers and skips in every direction, is the
// model: output and gradient to the bit.
func TestCheckpointedModelsWithSkips(t *testing.T) {
	torchtest.Check(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	rapid.Check(t, func(t *rapid.T) {
		p := drawModel(t, false)
		plain := p.build()
		var wrap func(p *plan, depth int)
		wrap = func(p *plan, depth int) {
			for _, child := range p.children {
				if depth == 0 { // in a layer that uses its input elsewhere too, the sum of the gradients is another
					child.checkpoints = rapid.IntRange(0, 2).Draw(t, "checkpoints")
				}
				wrap(child, depth+1)
			}
		}
		wrap(p, 0)
		wrapped := p.build()
		c := torch.NewCtx(torch.Options{Grad: rapid.Bool().Draw(t, "grad"), Threads: 1})
		defer c.Close()
		want, got := play(c, plain.Forward), play(c, wrapped.Forward)
		for _, name := range slices.Sorted(maps.Keys(want)) {
			if !slices.Equal(got[name], want[name]) {
				t.Fatalf("the %s is %v, want %v", name, got[name], want[name])
			}
		}
	})
}

// Skips of parameters' gradients too: into a wrapper, out of it, through it, in it, around it,
// absent, of integers, popped by several.
func TestSkipsCrossCheckpoints(t *testing.T) {
	linear := func() nn.Layer { return nn.NewLinear(4, 4) }
	for _, row := range []struct {
		reason string
		build  func(wrap wrapper) []nn.Layer
	}{
		{"into", func(wrap wrapper) []nn.Layer {
			return []nn.Layer{linear(), stashing("a"), linear(), wrap(chain(nn.NewTanh(), popping("a"), linear()))}
		}},
		{"out of", func(wrap wrapper) []nn.Layer {
			return []nn.Layer{wrap(chain(linear(), nn.NewTanh(), stashing("a"), linear())), linear(), popping("a")}
		}},
		{"through", func(wrap wrapper) []nn.Layer {
			return []nn.Layer{linear(), stashing("a"), wrap(chain(linear(), popping("a"), nn.NewTanh(), stashing("b"), linear())), linear(), popping("b")}
		}},
		{"around", func(wrap wrapper) []nn.Layer {
			return []nn.Layer{linear(), stashing("a"), wrap(chain(linear(), nn.NewTanh())), popping("a"), linear()}
		}},
		{"inside", func(wrap wrapper) []nn.Layer {
			return []nn.Layer{wrap(chain(linear(), stashing("a"), nn.NewTanh(), wrap(popping("a")), linear()))}
		}},
		{"to pops inside and outside", func(wrap wrapper) []nn.Layer {
			return []nn.Layer{wrap(chain(linear(), nn.NewTanh(), stashing("a"), linear(), popping("a"), nn.NewTanh(), popping("a"))), popping("a"), linear(), popping("a")}
		}},
		{"from outside to several inside, before and after", func(wrap wrapper) []nn.Layer {
			return []nn.Layer{linear(), nn.NewTanh(), stashing("a"), linear(), popping("a"), wrap(chain(nn.NewTanh(), popping("a"), linear(), popping("a"))), nn.NewTanh(), popping("a")}
		}},
		{"from a wrapper to a wrapper, both nested", func(wrap wrapper) []nn.Layer {
			return []nn.Layer{wrap(chain(linear(), wrap(chain(nn.NewTanh(), stashing("a"))), linear())), linear(), wrap(chain(linear(), wrap(chain(popping("a"), nn.NewTanh()))))}
		}},
		{"from a layer to its child", func(wrap wrapper) []nn.Layer {
			children := []nn.Layer{linear(), wrap(popping("a")), nn.NewTanh()}
			return []nn.Layer{linear(), wrap(declaring("a", "", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				c.Stash("a", x)
				return c.Run(x, children...)
			}, children...))}
		}},
		{"of integers", func(wrap wrapper) []nn.Layer {
			table := nn.NewEmbedding(4, 4, nn.EmbeddingConfig{})
			index := declaring("a", "", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				c.Stash("a", c.Argmax(x, 1))
				return x
			})
			look := declaring("", "a", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Add(x, c.Run(c.Pop("a"), table)) }, table)
			return []nn.Layer{linear(), wrap(chain(nn.NewTanh(), index)), linear(), wrap(look)}
		}},
		{"that is absent", func(wrap wrapper) []nn.Layer {
			absent := declaring("a", "", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
				c.Stash("a", nil)
				return x
			})
			return []nn.Layer{wrap(chain(linear(), absent, nn.NewTanh(), popping("a"))), linear(), wrap(chain(popping("a"), nn.NewTanh()))}
		}},
		{"that a layer overwrites after its stash", func(wrap wrapper) []nn.Layer {
			return []nn.Layer{wrap(chain(linear(), stashing("a"), nn.NewReLUInPlace(), linear())), stashing("b"), wrap(nn.NewReLUInPlace()), popping("a"), wrap(chain(linear(), popping("b")))}
		}},
		{"that is the input of a wrapper as well", func(wrap wrapper) []nn.Layer {
			return []nn.Layer{linear(), stashing("a"), wrap(chain(nn.NewReLUInPlace(), linear(), popping("a"))), nn.NewReLUInPlace(), linear()}
		}},
		{"of one name in two namespaces", func(wrap wrapper) []nn.Layer {
			return []nn.Layer{linear(), stashing("a"), wrap(chain(linear(), isolated(apart, stashing("a")), linear())), wrap(chain(popping("a"), nn.NewTanh())), wrap(isolated(apart, popping("a")))}
		}},
	} {
		for way, wrap := range map[string]wrapper{"once": nn.Checkpointed, "twice": twice} {
			t.Run(fmt.Sprintf("%s/%s", row.reason, way), func(t *testing.T) {
				c := torchtest.New(t, torch.Options{Grad: true})
				run := func(wrap wrapper, cfg nn.Config) map[string][]byte {
					model := nn.NewSequential(row.build(wrap)...)
					nn.Materialise(c, nn.State(model), 1)
					defer nn.Free(model)
					return outcome(c, model, cfg, leaves([]int64{6, 4}))
				}
				for _, training := range []bool{true, false} {
					if d := unlike(run(wrap, nn.Config{Training: training}), run(bare, nn.Config{Training: training})); d != "" {
						t.Errorf("%s differs", d)
					}
				}
			})
		}
	}
}

// Nobody outside of a function that is run again knows its skips.
func TestCheckpointTakesNoSkips(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true})
	within := func(l *lambda) *lambda {
		f := l.f
		l.f = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			return c.Checkpoint(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor { return []*torch.Tensor{f(c, xs[0])} }, x)[0]
		}
		return l
	}
	for want, model := range map[string]*nn.Sequential{
		`skip "a" is not a skip of the model that is running`: nn.NewSequential(within(stashing("a")), popping("a")),
		`skip "a" has not been stashed`:                       nn.NewSequential(stashing("a"), within(popping("a"))),
	} {
		for _, grad := range []bool{true, false} {
			c.SetGrad(grad)
			err := torch.Try(func() { model.Forward(nn.NewCtx(c, nn.Config{}), c.Ones(torch.Float32, 2)) })
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q in it", err, want)
			}
		}
	}
	lone := nn.Checkpointed(popping("a"))
	err := torch.Try(func() { lone.Forward(nn.NewCtx(c, nn.Config{}), c.Ones(torch.Float32, 2)) })
	if err == nil || !strings.Contains(err.Error(), "run the layer as part of an nn.Sequential") {
		t.Errorf("outside of a model: %v", err)
	}
}
