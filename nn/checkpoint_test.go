package nn_test

import (
	"bytes"
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
func outcome(c *torch.Ctx, model *nn.Sequential, cfg nn.Config, input func(c *torch.Ctx) list) map[string][]byte {
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
		p.Freeze()
	}
	return l
}

func chain(layers ...nn.Layer) nn.Layer { return nn.NewSequential(layers...) }

// tripled gives a tensor three times, and takes in a tensor that is given three times: the
// gradients of each have an order to be summed in.
func tripled(wrap wrapper) *nn.Sequential {
	return nn.NewSequential(
		wrap(chain(nn.NewLinear(4, 4), mapping(func(c *nn.Ctx, xs list) list {
			y := c.Tanh(xs[0])
			return list{y, c.Argmax(y, 1), y, y}
		}))),
		wrap(mapping(func(c *nn.Ctx, xs list) list {
			first := c.Mul(xs[0], c.Sigmoid(xs[2]))
			return list{c.Add(c.Mul(c.Tanh(xs[3]), first), c.Mul(xs[2], xs[0])), xs[1]}
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
		return nn.NewSequential(wrap(chain(nn.NewLinear(4, 8), nn.NewDropout(0.5), nn.NewTanh())), nn.NewDropout(0.5), wrap(nn.NewDropout(0.5)), nn.NewLinear(8, 2))
	}, leaves([]int64{6, 4}), 7},
	{"a layer that works in place", func(wrap wrapper) *nn.Sequential {
		return nn.NewSequential(nn.NewLinear(4, 4), wrap(nn.NewReLUInPlace()), nn.NewLinear(4, 4))
	}, leaves([]int64{6, 4}), 7},
	{"a layer that works in place on what its wrapper was given", func(wrap wrapper) *nn.Sequential {
		return nn.NewSequential(nn.NewLinear(4, 4), wrap(chain(nn.NewIdentity(), nn.NewDropout(0), composite(nn.NewReLUInPlace()), nn.NewLinear(4, 4))))
	}, leaves([]int64{6, 4}), 7},
	{"a layer that works in place on a view of what a wrapper was given", func(wrap wrapper) *nn.Sequential {
		return nn.NewSequential(nn.NewLinear(4, 4), wrap(nn.NewFlatten(0, -1)), wrap(nn.NewIdentity()), nn.NewReLUInPlace())
	}, leaves([]int64{6, 4}), 5},
	{"batch norm", func(wrap wrapper) *nn.Sequential {
		return nn.NewSequential(wrap(nn.NewBatchNorm2d(3, nn.BatchNormConfig{})),
			wrap(chain(nn.NewConv2d(3, 3, nn.Square(3), nn.Conv2dConfig{}), nn.NewBatchNorm2d(3, nn.BatchNormConfig{Cumulative: true}), nn.NewReLUInPlace())))
	}, leaves([]int64{2, 3, 6, 6}), 9},
	{"a bottleneck", func(wrap wrapper) *nn.Sequential {
		return nn.NewSequential(wrap(nn.NewBottleneck(3, 2, 2)), wrap(nn.NewBottleneck(8, 2, 1)), nn.NewAdaptiveAvgPool2d(nn.Square(1)))
	}, leaves([]int64{2, 3, 6, 6}), 20},
	{"a transformer block", func(wrap wrapper) *nn.Sequential {
		return nn.NewSequential(wrap(nn.NewTransformerBlock(8, 2, nn.TransformerConfig{Dropout: 0.2})), wrap(nn.NewLayerNorm([]int64{8}, nn.LayerNormConfig{})))
	}, leaves([]int64{2, 5, 8}), 15},
	{"wrappers in wrappers", func(wrap wrapper) *nn.Sequential {
		return nn.NewSequential(wrap(chain(nn.NewLinear(4, 4), wrap(chain(nn.NewDropout(0.3), wrap(nn.NewLinear(4, 4)), nn.NewReLUInPlace())), wrap(composite(wrap(nn.NewTanh()))))))
	}, leaves([]int64{6, 4}), 7},
	{"a gradient in another layout", func(wrap wrapper) *nn.Sequential {
		return nn.NewSequential(nn.NewLinear(4, 4), wrap(doing(func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Transpose(c.Tanh(x), 1, 2) })), nn.NewLinear(5, 5))
	}, leaves([]int64{3, 5, 4}), 7},
	{"a tuple in and a tuple out", tripled, leaves([]int64{6, 4}), 5},
	{"outputs without a gradient before the one with it", func(wrap wrapper) *nn.Sequential {
		return nn.NewSequential(nn.NewLinear(4, 4), wrap(mapping(func(c *nn.Ctx, xs list) list {
			return list{c.Argmax(xs[0], 1), c.Detach(c.Tanh(xs[0])), c.Eq(xs[0], xs[0]), c.Tanh(xs[0])}
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
		return nn.NewSequential(wrap(chain(first, nn.NewTanh(), nn.NewLinearShared(first.Weight, false), nn.NewLinearShared(first.Weight, true))))
	}, leaves([]int64{6, 4}), 6},
	{"part of a layer's forward", func(wrap wrapper) *nn.Sequential {
		linear := nn.NewLinear(4, 4)
		f := func(c *nn.Ctx, xs list) list { return list{nil, c.Dropout(c.Run(xs[0], linear), 0.3), c.Tanh(xs[2])} }
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
		model := nn.NewSequential(wrap(chain(nn.NewBatchNorm1d(4, nn.BatchNormConfig{}), wrap(nn.NewBatchNorm1d(4, nn.BatchNormConfig{Cumulative: true})))))
		nn.Materialise(c, nn.State(model), 1)
		defer nn.Free(model)
		d := nn.NewDeferred()
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
