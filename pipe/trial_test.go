package pipe_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// trial is training steps of a model of tuples, to be run by a plain loop and by pipes. What its
// functions make is the same every time.
type trial struct {
	model   func() *nn.Sequential
	inputs  func(c *torch.Ctx) []part
	targets func(c *torch.Ctx) []part
	loss    nn.Loss
	rows    int64
	steps   int // 0 is 1
	extras  map[string]any

	deferred bool
}

// part is an element of a batch: its rows are split, or it goes whole to every micro-batch.
type part struct {
	t     *torch.Tensor
	whole bool
}

func value(p part) pipe.Value { return pipe.Value{Tensor: p.t, Whole: p.whole} }

func batchOf(in, targets []part) (b pipe.Batch) {
	for _, p := range in {
		b.Input = append(b.Input, value(p))
	}
	for _, p := range targets {
		b.Target = append(b.Target, value(p))
	}
	return b
}

// one is a batch of one tensor.
func one(f func(*torch.Ctx, int) *torch.Tensor) func(*torch.Ctx) []part {
	return func(c *torch.Ctx) []part { return []part{{t: f(c, 0)}} }
}

// wanted is one whose gradient is wanted.
func wanted(f func(*torch.Ctx, int) *torch.Tensor) func(*torch.Ctx) []part {
	return func(c *torch.Ctx) []part { return []part{{t: f(c, 0).SetRequiresGrad(true)}} }
}

// add records the gradients of those inputs that want one, and drops them.
func (r *record) add(step int, in []part) {
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	for i, p := range in {
		if g := c.GradOf(p.t); g != nil {
			name := fmt.Sprintf("gradient of input %d of step %d", i, step)
			r.values[name] = torch.Bytes(g)
			p.t.SetGradOf(nil)
		}
	}
}

// partsOn has the tensors of a list where operators of a device can use them; see onDevice.
func partsOn(c *torch.Ctx, d torch.Device, list []part) (out []part) {
	for _, p := range list {
		out = append(out, part{onDevice(c, d, p.t), p.whole})
	}
	return out
}

// plain runs the trial without a pipe, on the first device for tests: micro-batch after micro-batch,
// each forward and backward through the whole model. Tensor by tensor its record is what every pipe's
// must be.
func (q trial) plain(chunks int, seed uint64) record {
	runtime.LockOSThread() // see problem.plainOn
	defer runtime.UnlockOSThread()
	d := torchtest.Device(0)
	c := torch.NewCtx(torch.Options{Device: d, Threads: 1})
	defer c.Close()
	b := torch.NewCtx(torch.Options{Device: aside, Threads: 1})
	defer b.Close()
	model := q.model()
	defer nn.Free(model)
	nn.Materialise(c, nn.State(model), seed)
	r := record{values: map[string][]byte{}}
	m := min(int64(chunks), q.rows)
	var losses []float64
	for step := range max(q.steps, 1) {
		nn.ZeroGrads(model)
		in, targets := partsOn(b, d, q.inputs(b)), partsOn(b, d, q.targets(b))
		var deferred *nn.Deferred
		if q.deferred {
			deferred = new(nn.Deferred)
		}
		total, start := 0.0, int64(0)
		for i := range m {
			n := q.rows / m
			if i < q.rows%m {
				n++
			}
			cut := func(list []part) (out []*torch.Tensor) {
				for _, p := range list {
					if p.whole {
						out = append(out, p.t)
					} else {
						out = append(out, c.Narrow(p.t, 0, start, n))
					}
				}
				return out
			}
			weight := 1.0
			if q.loss.Reduction() == torch.ReduceMean {
				weight = float64(n) / float64(q.rows)
			}
			c.SetGrad(true)
			ctx := nn.NewCtx(c, nn.Config{Training: true, MicroBatch: int(i), MicroBatches: int(m),
				Seed: torch.Mix(seed, uint64(step)), Deferred: deferred, Extras: q.extras})
			loss := nn.RunLoss(ctx, q.loss, model.ForwardTuple(ctx, cut(in)), cut(targets))
			total += float64(torch.Item[float32](loss)) * weight
			c.SetGrad(false)
			c.Backward([]*torch.Tensor{loss}, []*torch.Tensor{c.Fill_(c.Op("aten::empty_like", loss),
				weight)}, false)
			start += n
		}
		if q.deferred {
			deferred.Commit(nn.NewCtx(c, nn.Config{}))
		}
		losses = append(losses, total)
		r.keep(model, losses, step, in)
		descend(c, nn.Params(model))
		c.Close()
		b.Close()
	}
	return r
}

// keep records everything there is after a step's backward.
func (r *record) keep(model nn.Module, losses []float64, step int, in []part) {
	s := snapshot(model, losses, gradient)
	r.losses = losses
	for name, value := range s.values {
		r.values[fmt.Sprintf("%s at step %d", name, step)] = value
	}
	r.add(step, in)
}

// piped runs the trial with a pipe on the devices for tests.
func (q trial) piped(t test, cfg pipe.Config) record {
	t.Helper()
	model := q.model()
	cfg.DeferredBatchNorm = q.deferred
	p := must.Get(pipe.New(model, onDevices(cfg)))(t)
	defer nn.Free(model)
	defer p.Close()
	first, last := p.Stages()[0].Device, p.Stages()[len(p.Stages())-1].Device
	c := torch.NewCtx(torch.Options{Threads: 1, Device: aside})
	defer c.Close()
	r := record{values: map[string][]byte{}}
	var losses []float64
	for step := range max(q.steps, 1) {
		nn.ZeroGrads(model)
		in := partsOn(c, first, q.inputs(c))
		b := batchOf(in, partsOn(c, last, q.targets(c)))
		b.Step, b.Extras = new(int64(step)), q.extras
		result, err := p.Step(context.Background(), b, q.loss)
		if err != nil {
			t.Fatalf("%s: %v", named(cfg), err)
		}
		losses = append(losses, result.Loss)
		r.keep(model, losses, step, in)
		must.Do(t, p.OnStages(context.Background(), func(stage int, c *torch.Ctx) error {
			descend(c, p.Stages()[stage].Params())
			return nil
		}))
		c.Close()
	}
	return r
}

// check compares the trial's record on many pipes with the plain loop's, bit for bit and tensor by
// tensor. It returns the plain one.
func (q trial) check(t *testing.T, chunks int) record {
	t.Helper()
	want := q.plain(chunks, 5)
	for _, cfg := range configs(len(q.model().Layers()), chunks) {
		if d := want.differs(q.piped(t, cfg)); d != "" {
			t.Errorf("%s: %s differs from the plain loop", named(cfg), d)
		}
	}
	return want
}

// configs is every way to cut so many layers into at most 4 stages, each with every policy and with
// each of the switches.
func configs(layers, chunks int) []pipe.Config {
	var out []pipe.Config
	for _, b := range cuts(layers, 4) {
		for _, k := range policies {
			out = append(out, pipe.Config{Balance: b, Chunks: chunks, Checkpoint: k, Seed: 5})
		}
		var each []pipe.Checkpoint
		for i := range b {
			each = append(each, policies[i%len(policies)])
		}
		mixed := pipe.Config{Balance: b, Chunks: chunks, Checkpoint: pipe.PerStage(each...), Seed: 5}
		one, shared := mixed, mixed
		one.Schedule = oneAtATime
		shared.Devices = make([]torch.Device, len(b))
		out = append(out, one, shared)
	}
	return out
}

// cuts lists the balances of so many layers with at most so many stages.
func cuts(layers, stages int) [][]int {
	out := [][]int{{layers}}
	for first := 1; first < layers && stages > 1; first++ {
		for _, rest := range cuts(layers-first, stages-1) {
			out = append(out, append([]int{first}, rest...))
		}
	}
	return out
}

// named says which configuration it is.
func named(cfg pipe.Config) string {
	s := fmt.Sprintf("balance %v, %d chunks, %v", cfg.Balance, cfg.Chunks, cfg.Checkpoint)
	for _, f := range []struct {
		on   bool
		name string
	}{{cfg.Schedule != nil, "links that hold one value"}, {cfg.Devices != nil,
		fmt.Sprint("on ", cfg.Devices)}} {
		if f.on {
			s += ", " + f.name
		}
	}
	return s
}

// tuples makes a layer of tuples of a function.
func tuples(f func(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor) nn.Layer {
	l := &tupled{f: f}
	return nn.Tuple(l, l.ForwardTuple)
}

// stashing and popping make layers of functions that stash and pop.
func stashing(f func(*nn.Ctx, *torch.Tensor) *torch.Tensor, names ...string) *call {
	l := layer(f)
	l.Stashes(names...)
	return l
}

func popping(f func(*nn.Ctx, *torch.Tensor) *torch.Tensor, names ...string) *call {
	l := layer(f)
	l.Pops(names...)
	return l
}

// constantly is an initialiser.
func constantly(v float64) nn.Init { return func(c *torch.Ctx, t *torch.Tensor) { c.Fill_(t, v) } }

// whole numbers from -2 to 2: sums and products of them are exact, in whatever order.
func whole(c *torch.Ctx, seed int, shape ...int64) *torch.Tensor {
	n := int64(1)
	for _, s := range shape {
		n *= s
	}
	values := make([]float32, n)
	for i := range values {
		values[i] = float32(torch.Mix(uint64(seed), uint64(i))%5) - 2
	}
	return torch.From(c, values, shape...)
}

func wholly(c *torch.Ctx, t *torch.Tensor) { c.Copy_(t, whole(c, int(c.NextSeed()>>1), t.Shape()...)) }
