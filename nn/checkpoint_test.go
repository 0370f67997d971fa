package nn_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"

	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/torch"
)

type list = []*torch.Tensor

// wrapper is nn.Checkpointed, or what stands in its place in the model that it is held against.
type wrapper func(nn.Layer) nn.Layer

func bare(l nn.Layer) nn.Layer  { return l }
func twice(l nn.Layer) nn.Layer { return nn.Checkpointed(nn.Checkpointed(l)) }

// outcome is all that a mini-batch of three micro-batches leaves, as bytes by name: forward of all,
// then backward in order.
func outcome(c *torch.Ctx, model *nn.Sequential, cfg nn.Config,
	input func(c *torch.Ctx) list) map[string][]byte {
	// autograd orders what is used several times by numbers that it counts on each thread
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer c.Close()
	out := map[string][]byte{}
	note := func(name string, t *torch.Tensor) {
		if t != nil {
			out[name] = torch.Bytes(t)
		}
	}
	var losses, inputs list
	for i := range 3 {
		c.SetSeed(uint64(i))
		xs := input(c)
		inputs = append(inputs, xs...)
		cfg.MicroBatch, cfg.MicroBatches, cfg.Seed = i, 3, 9
		ys := model.ForwardTuple(nn.NewCtx(c, cfg), xs)
		loss := c.Zeros(torch.Float32)
		for j, y := range ys {
			note(fmt.Sprintf("output %d of micro-batch %d", j, i), y)
			if y.DType().IsFloat() {
				c.SetSeed(uint64(10*i + j))
				weight := c.Normal_(c.Empty(torch.Float32, y.Shape()...), 0, 1)
				loss = c.Add(loss, c.Sum(c.Mul(c.To(y, torch.Float32), weight)))
			}
		}
		note(fmt.Sprint("loss of micro-batch ", i), loss)
		losses = append(losses, loss)
	}
	for _, loss := range losses {
		if loss.RequiresGrad() {
			c.Backward(list{loss}, list{nil}, false)
		}
	}
	for i, x := range inputs {
		note(fmt.Sprint("gradient of input ", i), c.GradOf(x))
		x.SetGradOf(nil)
	}
	for _, p := range nn.State(model) {
		note("gradient of "+p.Name, c.GradOf(p.Tensor()))
		note(p.Name, p.Tensor())
	}
	nn.ZeroGrads(model)
	return out
}

// unlike names what is not the same in two outcomes, or "".
func unlike(got, want map[string][]byte) string {
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if g, ok := got[name]; !ok || !bytes.Equal(g, want[name]) {
			return name
		}
	}
	if len(got) != len(want) {
		return fmt.Sprintf("number of results: %d and %d", len(got), len(want))
	}
	return ""
}

// leaves is an input of float32 tensors that want gradients.
func leaves(shapes ...[]int64) func(c *torch.Ctx) list {
	return func(c *torch.Ctx) (out list) {
		for _, s := range shapes {
			out = append(out, c.Normal_(c.Empty(torch.Float32, s...), 0, 1).SetRequiresGrad(true))
		}
		return out
	}
}

// constants is the same of tensors that want none.
func constants(shape ...int64) func(c *torch.Ctx) list {
	return func(c *torch.Ctx) list { return list{c.Normal_(c.Empty(torch.Float32, shape...), 0, 1)} }
}

func frozen(l nn.Layer) nn.Layer {
	for _, p := range nn.Params(l) {
		p.SetTrainable(false)
	}
	return l
}

func chain(layers ...nn.Layer) nn.Layer { return nn.NewSequential(layers...) }

// tripled gives a tensor three times, and takes in a tensor that is given three times: the
// gradients of each have an order to be summed in.
func tripled(wrap wrapper) *nn.Sequential {
	return nn.NewSequential(
		wrap(chain(nn.NewLinear(4, 4), mapping(func(c *nn.Ctx, xs list) list {
			y := c.Op("aten::tanh", xs[0])
			return list{y, c.Argmax(y, 1), y, y}
		}))),
		wrap(mapping(func(c *nn.Ctx, xs list) list {
			first := c.Mul(xs[0], c.Op("aten::sigmoid", xs[2]))
			return list{c.Add(c.Mul(c.Op("aten::tanh", xs[3]), first), c.Mul(xs[2], xs[0])), xs[1]}
		})),
	)
}

var checkpointedModels = []struct {
	reason    string
	build     func(wrap wrapper) *nn.Sequential
	input     func(c *torch.Ctx) list
	gradients int // how many results are at least gradients
}{
	{"dropout", func(wrap wrapper) *nn.Sequential {
		return nn.NewSequential(wrap(chain(nn.NewLinear(4, 8), nn.NewDropout(0.5), nn.NewTanh())),
			nn.NewDropout(0.5), wrap(nn.NewDropout(0.5)), nn.NewLinear(8, 2))
	}, leaves([]int64{6, 4}), 7},
	{"a layer that works in place", func(wrap wrapper) *nn.Sequential {
		return nn.NewSequential(nn.NewLinear(4, 4), wrap(nn.NewReLUInPlace()), nn.NewLinear(4, 4))
	}, leaves([]int64{6, 4}), 7},
	{"a layer that works in place on what its wrapper was given", func(wrap wrapper) *nn.Sequential {
		return nn.NewSequential(nn.NewLinear(4, 4), wrap(chain(nn.NewIdentity(), nn.NewDropout(0),
			composite(nn.NewReLUInPlace()), nn.NewLinear(4, 4))))
	}, leaves([]int64{6, 4}), 7},
	{"a layer that works in place on a view of what a wrapper was given", func(wrap wrapper) *nn.Sequential {
		return nn.NewSequential(nn.NewLinear(4, 4), wrap(nn.NewFlatten(0, -1)), wrap(nn.NewIdentity()),
			nn.NewReLUInPlace())
	}, leaves([]int64{6, 4}), 5},
	{"batch norm", func(wrap wrapper) *nn.Sequential {
		return nn.NewSequential(wrap(nn.NewBatchNorm2d(3, nn.BatchNormConfig{})),
			wrap(chain(nn.NewConv2d(3, 3, nn.Square(3), nn.ConvConfig{}), nn.NewBatchNorm2d(3,
				nn.BatchNormConfig{}), nn.NewReLUInPlace())))
	}, leaves([]int64{2, 3, 6, 6}), 9},
	{"a bottleneck", func(wrap wrapper) *nn.Sequential {
		return nn.NewSequential(wrap(nn.NewBottleneck(3, 2, 8, 1, 2)), wrap(nn.NewBottleneck(8, 2, 8, 1, 1)),
			nn.NewAdaptiveAvgPool2d(nn.Square(1)))
	}, leaves([]int64{2, 3, 6, 6}), 20},
	{"a transformer block", func(wrap wrapper) *nn.Sequential {
		return nn.NewSequential(wrap(torchtest.TransformerBlock(8, 2, 0.2)),
			wrap(nn.NewLayerNorm([]int64{8}, nn.NormConfig{})))
	}, leaves([]int64{2, 5, 8}), 15},
	{"wrappers in wrappers", func(wrap wrapper) *nn.Sequential {
		return nn.NewSequential(wrap(chain(nn.NewLinear(4, 4), wrap(chain(nn.NewDropout(0.3),
			wrap(nn.NewLinear(4, 4)), nn.NewReLUInPlace())), wrap(composite(wrap(nn.NewTanh()))))))
	}, leaves([]int64{6, 4}), 7},
	{"a gradient in another layout", func(wrap wrapper) *nn.Sequential {
		return nn.NewSequential(nn.NewLinear(4, 4), wrap(doing(func(c *nn.Ctx,
			x *torch.Tensor) *torch.Tensor {
			return c.Transpose(c.Op("aten::tanh", x), 1, 2)
		})), nn.NewLinear(5, 5))
	}, leaves([]int64{3, 5, 4}), 7},
	{"a tuple in and a tuple out", tripled, leaves([]int64{6, 4}), 5},
	{"outputs without a gradient before the one with it", func(wrap wrapper) *nn.Sequential {
		return nn.NewSequential(nn.NewLinear(4, 4), wrap(mapping(func(c *nn.Ctx, xs list) list {
			return list{c.Argmax(xs[0], 1), c.Detach(c.Op("aten::tanh", xs[0])),
				c.Op("aten::eq.Tensor", xs[0],
					xs[0]), c.Op("aten::tanh", xs[0])}
		})))
	}, leaves([]int64{6, 4}), 5},
	{"integers in", func(wrap wrapper) *nn.Sequential {
		return nn.NewSequential(wrap(chain(nn.NewEmbedding(7, 4, nn.EmbeddingConfig{}), nn.NewTanh())))
	}, func(c *torch.Ctx) list { return list{torch.From(c, []int64{3, 0, 6, 3})} }, 1},
	{"integers beside what has a gradient", func(wrap wrapper) *nn.Sequential {
		return nn.NewSequential(wrap(fork()), wrap(join(nn.NewEmbedding(4, 4, nn.EmbeddingConfig{}))))
	}, leaves([]int64{6, 4}), 4},
	{"an input without a gradient, and parameters", func(wrap wrapper) *nn.Sequential {
		return nn.NewSequential(wrap(chain(nn.NewLinear(4, 4), nn.NewTanh())))
	}, constants(6, 4), 2},
	{"some frozen parameters", func(wrap wrapper) *nn.Sequential {
		return nn.NewSequential(wrap(chain(frozen(nn.NewLinear(4, 4)), nn.NewTanh(), nn.NewLinear(4, 4))))
	}, constants(6, 4), 2},
	{"frozen parameters, and an input with a gradient", func(wrap wrapper) *nn.Sequential {
		return nn.NewSequential(wrap(frozen(chain(nn.NewLinear(4, 4), nn.NewTanh()))))
	}, leaves([]int64{6, 4}), 3},
	{"nothing that wants a gradient", func(wrap wrapper) *nn.Sequential {
		return nn.NewSequential(wrap(frozen(chain(nn.NewLinear(4, 4), nn.NewTanh()))))
	}, constants(6, 4), 0},
	{"a parameter that is used twice inside", func(wrap wrapper) *nn.Sequential {
		first := nn.NewLinear(4, 4)
		return nn.NewSequential(wrap(chain(first, nn.NewTanh(), nn.NewLinearShared(first.Weight, false),
			nn.NewLinearShared(first.Weight, true))))
	}, leaves([]int64{6, 4}), 6},
	{"part of a layer's forward", func(wrap wrapper) *nn.Sequential {
		linear := nn.NewLinear(4, 4)
		f := func(c *nn.Ctx, xs list) list {
			return list{nil, c.Dropout(c.Run(xs[0], linear), 0.3), c.Op("aten::tanh", xs[2])}
		}
		return nn.NewSequential(declaring("", "", func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			in := list{x, nil, x}
			before, ys := c.Dropout(x, 0.5), list(nil)
			if _, checkpointed := wrap(linear).(*nn.Linear); !checkpointed {
				ys = c.Checkpoint(f, in...)
			} else {
				ys = f(c, in)
			}
			return c.Add(c.Mul(ys[1], before), c.Dropout(ys[2], 0.5))
		}, linear))
	}, leaves([]int64{6, 4}), 5},
}

// A model that is wrapped in parts is the model: outputs, loss, every gradient and every buffer, to
// the bit.
func TestCheckpointedIsTheLayer(t *testing.T) {
	for _, row := range checkpointedModels {
		for _, autocast := range []torch.Autocast{torch.AutocastOff, torch.AutocastBFloat16} {
			for way, wrap := range map[string]wrapper{"once": nn.Checkpointed, "twice": twice} {
				t.Run(fmt.Sprintf("%s/%s/autocast=%v", row.reason, way, autocast), func(t *testing.T) {
					c := torchtest.New(t, torch.Options{Grad: true, Autocast: autocast})
					run := func(wrap wrapper, cfg nn.Config) map[string][]byte {
						model := row.build(wrap)
						nn.Materialise(c, nn.State(model), 1)
						defer nn.Free(model)
						return outcome(c, model, cfg, row.input)
					}
					for _, training := range []bool{true, false} {
						want := run(bare, nn.Config{Training: training})
						if d := unlike(run(wrap, nn.Config{Training: training}), want); d != "" {
							t.Errorf("training: %v: %s differs", training, d)
						}
						gradients := 0
						for name := range want {
							if strings.HasPrefix(name, "gradient") {
								gradients++
							}
						}
						if gradients < row.gradients {
							t.Errorf("%d gradients were compared, want %d", gradients, row.gradients)
						}
					}
				})
			}
		}
	}
}

// With deferred batch norms the rows of each micro-batch are counted once.
func TestCheckpointedObservesDeferredStatisticsOnce(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true})
	run := func(wrap wrapper) map[string][]byte {
		model := nn.NewSequential(wrap(chain(nn.NewBatchNorm1d(4, nn.BatchNormConfig{}),
			wrap(nn.NewBatchNorm1d(4, nn.BatchNormConfig{})))))
		nn.Materialise(c, nn.State(model), 1)
		defer nn.Free(model)
		d := new(nn.Deferred)
		out := outcome(c, model, nn.Config{Training: true, Deferred: d}, leaves([]int64{6, 4}))
		c.NoGrad(func() { d.Commit(nn.NewCtx(c, nn.Config{})) })
		for _, b := range nn.Buffers(model) {
			out[b.Name] = torch.Bytes(b.Tensor())
		}
		return out
	}
	if d := unlike(run(nn.Checkpointed), run(bare)); d != "" {
		t.Errorf("%s differs", d)
	}
}

// fallible is a model of nested wrappers with skips inside and around, one layer of which does
// what fail says. In its second run a layer sees Recomputing.
func fallible(fail func(c *nn.Ctx)) *nn.Sequential {
	failing := doing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		fail(c)
		return c.Op("aten::tanh", x)
	})
	inner := nn.NewSequential(stashing("inner"), nn.NewLinear(4, 4), failing, popping("inner"))
	outer := nn.NewSequential(nn.NewLinear(4, 4)).Add("deep", nn.Checkpointed(inner))
	return nn.NewSequential(nn.NewTanh(), stashing("around"),
		nn.Checkpointed(outer.Add("stash", stashing("out")).Add("pop", popping("out"))), nn.NewTanh(),
		popping("around"))
}

// However a layer fails, in whichever run: what it failed with comes out as it is, the path is the
// layer's, nothing is left, and the model runs again.
func TestFailuresInCheckpoints(t *testing.T) {
	type key struct{ int }
	plain := errors.New("plain")
	refused := &torch.Error{Op: "refused"}
	for name, row := range map[string]struct {
		fail func(c *nn.Ctx)
		is   func(p any) bool
	}{
		"a value":       {func(*nn.Ctx) { panic(key{3}) }, func(p any) bool { return p == any(key{3}) }},
		"an error":      {func(*nn.Ctx) { panic(plain) }, func(p any) bool { return p == any(plain) }},
		"a torch.Error": {func(*nn.Ctx) { panic(refused) }, func(p any) bool { return p == any(refused) }},
		"an operator": {func(c *nn.Ctx) {
			c.Op("aten::mm", c.Ones(torch.Float32, 2, 3), c.Ones(torch.Float32, 2, 3))
		}, func(p any) bool { return strings.Contains(fmt.Sprint(p), "aten::mm(float32[2,3]") }},
		"out of memory": {func(c *nn.Ctx) {
			c.Device().SetLimit(c.Device().Memory().Live + 64)
			c.Ones(torch.Float32, 17)
		}, func(p any) bool {
			e, ok := p.(*torch.Error)
			return ok && errors.Is(e, torch.ErrOutOfMemory)
		}},
	} {
		for when, in := range map[string]func(c *nn.Ctx) bool{
			"the first run":                 func(c *nn.Ctx) bool { return !c.Recomputing },
			"the first run in a second one": func(c *nn.Ctx) bool { return c.Recomputing && c.Checkpointing },
			"the second run of both": func(c *nn.Ctx) bool {
				return c.Recomputing &&
					!c.Checkpointing
			},
		} {
			t.Run(name+" in "+when, func(t *testing.T) {
				a := newAccount(t, true)
				defer a.Device().SetLimit(0)
				armed := true
				model := fallible(func(c *nn.Ctx) {
					if armed && in(c) {
						row.fail(c)
					}
				})
				nn.Materialise(a.Ctx, nn.State(model), 1)
				defer nn.Free(model)
				a.start()
				run := func() (path string, failed any) {
					defer a.Close()
					defer nn.ZeroGrads(model)
					c := nn.NewCtx(a.Ctx, nn.Config{Training: true})
					failed = caught(func() {
						y := model.Forward(c, c.Ones(torch.Float32, 2, 4))
						c.Backward(list{y}, list{c.Op("aten::ones_like", y)}, false)
					})
					return c.Path(), failed
				}
				path, failed := run()
				if !row.is(failed) || path != "2.deep.2" {
					t.Errorf("got %v at %q", failed, path)
				}
				a.Device().SetLimit(0)
				if a.used() != 0 {
					t.Errorf("%d bytes are left", a.used())
				}
				armed = false
				if path, failed := run(); failed != nil || path != "" {
					t.Errorf("the next run fails with %v at %q", failed, path)
				}
			})
		}
	}
}

// What a layer in a wrapper does to memory that is not its own is an error that says so.
func TestCheckpointedInputsMustStayAsTheyAre(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true})
	double := doing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.MulScalar(x, 2) })
	// and says nothing of it
	overwriting := doing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.ReLU_(x) })
	x := c.Ones(torch.Float32, 2).SetRequiresGrad(true)
	err := torch.Try(func() {
		nn.NewSequential(double, nn.Checkpointed(overwriting)).Forward(nn.NewCtx(c, nn.Config{}), x)
	})
	if err == nil || !strings.Contains(err.Error(), "overwrote input 0, which it needs again in backward") {
		t.Errorf("in it: %v", err)
	}
	double, overwriting = doing(double.f), doing(overwriting.f)
	y := nn.NewSequential(double, nn.Checkpointed(chain(nn.NewIdentity())),
		overwriting).Forward(nn.NewCtx(c, nn.Config{}), x)
	err = torch.Try(func() { c.Backward(list{y}, list{c.Op("aten::ones_like", y)}, false) })
	if err == nil || !strings.Contains(err.Error(), "modified by an inplace operation") {
		t.Errorf("after it: %v", err)
	}
}

// Between forward and backward a checkpoint holds its inputs, to the byte, and who uses its outputs
// those: what the layers in it would keep is not there. Afterwards nothing is.
func TestCheckpointedHoldsItsInputs(t *testing.T) {
	const activation = 4 * 100 * 10
	tanhs := func(n int) nn.Layer {
		s := nn.NewSequential()
		for i := range n {
			s.Add(string(rune('a'+i)), nn.NewTanh())
		}
		return s
	}
	stacked := func(wrap wrapper) *nn.Sequential { return nn.NewSequential(wrap(tanhs(6)), wrap(tanhs(6))) }
	overwriting := func(wrap wrapper) *nn.Sequential {
		// which keeps nothing
		double := doing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.MulScalar(x, 2) })
		return nn.NewSequential(double, wrap(chain(nn.NewReLUInPlace(), tanhs(4))))
	}
	skipping := func(wrap wrapper) *nn.Sequential {
		return nn.NewSequential(tanhs(1), stashing("around"), wrap(chain(stashing("in"), tanhs(2),
			popping("in"), tanhs(2))), tanhs(1), popping("around"))
	}
	tuple := func(wrap wrapper) *nn.Sequential {
		return nn.NewSequential(wrap(mapping(func(c *nn.Ctx, xs list) list {
			y := c.Op("aten::tanh", c.Op("aten::tanh", xs[0]))
			return list{y, c.Argmax(y, 1), y}
		})))
	}
	for _, row := range []struct {
		reason string
		build  func(wrapper) *nn.Sequential
		wrap   wrapper
		want   int64 // bytes beside the input
	}{
		{"each Tanh keeps its output", stacked, bare, 12 * activation},
		{"two wrappers: two outputs, of which one is an input", stacked, nn.Checkpointed, 2 * activation},
		{"nested: nothing in them is kept", stacked, twice, 2 * activation},
		{"all in one", func(wrap wrapper) *nn.Sequential {
			return nn.NewSequential(wrap(chain(wrap(tanhs(6)), tanhs(6))))
		}, nn.Checkpointed, activation},
		{"the ReLU's output and those of four Tanh", overwriting, bare, 5 * activation},
		{"the copy for a layer that works in place is not kept", overwriting, nn.Checkpointed,
			2 * activation},
		{"skips: six outputs of Tanh and the sum at the end", skipping, bare, 7 * activation},
		{"input and skip around the wrapper are one memory; then the Tanh after it, and the sum", skipping,
			nn.Checkpointed, 3 * activation},
		{"what is given twice is held once, and integers are held", tuple, nn.Checkpointed, activation +
			8*100},
		{"not wrapped there is one more", tuple, bare, 2*activation + 8*100},
	} {
		t.Run(row.reason, func(t *testing.T) {
			a := newAccount(t, true)
			model := row.build(row.wrap)
			x := a.Normal_(a.Empty(torch.Float32, 100, 10), 0, 1).SetRequiresGrad(true)
			a.start()
			ys := model.ForwardTuple(nn.NewCtx(a.Ctx, nn.Config{Training: true}), list{x})
			if a.used() != row.want {
				t.Errorf("%d bytes are live after forward (%.2f activations), want %d", a.used(),
					float64(a.used())/activation, row.want)
			}
			grad := a.Op("aten::ones_like", ys[0])
			a.Backward(ys[:1], list{grad}, false)
			x.SetGradOf(nil)
			for _, t := range append(ys, grad) {
				t.Free()
			}
			if a.used() != 0 {
				t.Errorf("%d bytes are left after backward", a.used())
			}
		})
	}
}

// sight is what a layer may ask of the run that it is in.
type sight struct {
	Training, Checkpointing, Recomputing, grad bool
	MicroBatch, MicroBatches, extra            int
	path                                       string
}

func TestWhatACheckpointedLayerSees(t *testing.T) {
	first, second := sight{Checkpointing: true}, sight{Recomputing: true, grad: true}
	once := []sight{{}}
	for _, row := range []struct {
		reason string
		wrap   wrapper
		grad   bool
		cfg    nn.Config
		want   []sight
		plain  bool // the input wants no gradient
	}{
		{"not wrapped", bare, true, nn.Config{}, []sight{{grad: true}}, false},
		{"wrapped", nn.Checkpointed, true, nn.Config{}, []sight{first, second}, false},
		{"wrapped twice", twice, true, nn.Config{}, []sight{first, {Checkpointing: true,
			Recomputing: true}, second}, false},
		{"nothing wants a gradient", twice, true, nn.Config{}, []sight{{grad: true}}, true},
		{"without a graph", twice, false, nn.Config{}, once, false},
		{"in the first forward of a stage that recomputes", twice, false, nn.Config{Checkpointing: true},
			[]sight{first}, false},
		{"in the second", nn.Checkpointed, true, nn.Config{Recomputing: true},
			[]sight{{Checkpointing: true, Recomputing: true}, second}, false},
	} {
		t.Run(row.reason, func(t *testing.T) {
			c := torchtest.New(t, torch.Options{Grad: row.grad})
			var seen []sight
			model := nn.NewSequential(nn.NewSequential().Add("named", row.wrap(chain(nn.NewTanh(),
				doing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
					seen = append(seen, sight{c.Training, c.Checkpointing, c.Recomputing, c.Grad(),
						c.MicroBatch, c.MicroBatches, c.Extras["extra"].(int), c.Path()})
					return c.Op("aten::tanh", x)
				})))))
			cfg := row.cfg
			cfg.Training, cfg.MicroBatch, cfg.MicroBatches, cfg.Extras = true, 2, 5,
				map[string]any{"extra": 7}
			ctx := nn.NewCtx(c, cfg)
			x := c.Ones(torch.Float32, 2).SetRequiresGrad(!row.plain)
			y := model.Forward(ctx, x)
			if wants := row.grad && !row.plain; y.RequiresGrad() != wants {
				t.Errorf("the output wants a gradient: %v, want %v", !wants, wants)
			}
			if ctx.Checkpointing != cfg.Checkpointing || ctx.Recomputing != cfg.Recomputing ||
				ctx.Path() != "" {
				t.Errorf("after forward the context has %v, %v, %q", ctx.Checkpointing, ctx.Recomputing,
					ctx.Path())
			}
			if y.RequiresGrad() {
				c.Backward(list{y}, list{c.Op("aten::ones_like", y)}, false)
				x.SetGradOf(nil)
			}
			want := slices.Clone(row.want)
			for i := range want {
				want[i].Training, want[i].MicroBatch, want[i].MicroBatches, want[i].extra,
					want[i].path = true, 2, 5, 7, "0.named.1"
			}
			if !slices.Equal(seen, want) {
				t.Errorf("got  %+v\nwant %+v", seen, want)
			}
		})
	}
}

// Nobody outside of a function that is run again knows its skips.
func TestCheckpointTakesNoSkips(t *testing.T) {
	c := torchtest.New(t, torch.Options{Grad: true})
	within := func(l *lambda) *lambda {
		f := l.f
		l.f = func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
			return c.Checkpoint(func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
				return []*torch.Tensor{f(c, xs[0])}
			}, x)[0]
		}
		return l
	}
	for want, model := range map[string]*nn.Sequential{
		`skip "a" is not a skip of the model that is running`: nn.NewSequential(within(stashing("a")),
			popping("a")),
		`skip "a" has not been stashed`: nn.NewSequential(stashing("a"), within(popping("a"))),
	} {
		for _, grad := range []bool{true, false} {
			c.SetGrad(grad)
			err := torch.Try(func() { model.Forward(nn.NewCtx(c, nn.Config{}), c.Ones(torch.Float32, 2)) })
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q in it", err, want)
			}
		}
	}
	for want, model := range map[string]*nn.Sequential{
		`"0" stashes "a", which no layer pops`: nn.NewSequential(nn.Checkpointed(stashing("a")),
			popping("a")),
		`"1" pops "a", which no layer stashes`: nn.NewSequential(stashing("a"),
			nn.Checkpointed(popping("a"))),
	} {
		err := torch.Try(func() { model.Forward(nn.NewCtx(c, nn.Config{}), c.Ones(torch.Float32, 2)) })
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
}
