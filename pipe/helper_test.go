package pipe_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"penstock.example/group"
	"penstock.example/internal/must"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// record is everything a training run leaves, as bytes: losses, parameters, gradients of the
// last step, buffers.
type record struct {
	losses []float64
	values map[string][]byte // a gradient that does not exist is nil, as one that is missing
}

// differs names a loss or a value that is not in both the same, or nothing.
func (r record) differs(other record) string {
	if len(r.losses) != len(other.losses) {
		return fmt.Sprintf("the number of losses: %d and %d", len(r.losses), len(other.losses))
	}
	for i := range r.losses {
		if r.losses[i] != other.losses[i] {
			return fmt.Sprintf("loss of step %d: %v and %v", i, r.losses[i], other.losses[i])
		}
	}
	all := maps.Clone(r.values)
	maps.Copy(all, other.values)
	for _, n := range slices.Sorted(maps.Keys(all)) {
		if !bytes.Equal(r.values[n], other.values[n]) {
			return n
		}
	}
	return ""
}

func snapshot(model nn.Module, losses []float64, gradients func(p nn.NamedParam) []byte) record {
	r := record{losses: losses, values: map[string][]byte{}}
	for _, s := range nn.State(model) {
		r.values[s.Name] = torch.Bytes(s.Tensor())
		r.values["gradient of "+s.Name] = gradients(s)
	}
	return r
}

func gradient(p nn.NamedParam) []byte {
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	if g := c.GradOf(p.Tensor()); g != nil {
		return torch.Bytes(g)
	}
	return nil
}

// descend is plain gradient descent.
func descend(c *torch.Ctx, params []nn.NamedParam) {
	c.SetGrad(false)
	for _, p := range params {
		if g := c.GradOf(p.Tensor()); g != nil {
			c.Add_(p.Tensor(), g, -0.05)
		}
	}
}

// fewPositions are convolutions of which all but the first have few positions for images of 3 x 16 x 16: the
// products of which are of matrices.
func fewPositions() *nn.Sequential {
	return nn.NewSequential(nn.NewConv2d(3, 64, nn.Square(3),
		nn.ConvConfig{Stride: nn.Square(4), Padding: nn.Square(1)}),
		nn.NewBatchNorm2d(64, nn.BatchNormConfig{}), nn.NewReLUInPlace(),
		nn.NewConv2d(64, 80, nn.Square(3),
			nn.ConvConfig{Padding: nn.Square(1)}), nn.NewReLU(), nn.NewBasicBlock(80, 96, 2),
		nn.NewConv2d(96, 512, nn.Square(1),
			nn.ConvConfig{NoBias: true}), nn.NewAdaptiveAvgPool2d(nn.Square(1)), nn.NewFlatten(1, -1),
		nn.NewLinear(512, 10))
}

// problem is a model with its data.
type problem struct {
	model  func() *nn.Sequential
	loss   nn.Loss
	input  func(c *torch.Ctx, step int) *torch.Tensor
	target func(c *torch.Ctx, step int) *torch.Tensor
	rows   int64
	steps  int

	deferred bool           // batch norms
	autocast torch.Autocast // of the plain loop; a pipe's is in its Config
	threads  int            // likewise; 0 is 1

	before func(step int, model *nn.Sequential) // a step: what is set on the model

	link  linkMaker                          // between the stages of a pipe; nil is memory
	delay func(p *pipe.Pipe) delays          // of a pipe, once it is placed; nil is none
	reach func(p *pipe.Pipe, g *group.Group) // between processes: before a pipe is placed; nil is nothing
}

// delays are what happens to a pipe that is to show that it waits.
type delays struct {
	give func(pipe.Batch) // before each step
	end  func()
}

func (q problem) sets(step int, model *nn.Sequential) {
	if q.before != nil {
		q.before(step, model)
	}
}

// aside is a CPU device on which no test has stages. Batches are made on it, so that they have the
// same numbers for all devices, and no account that a test looks at has their bytes.
var aside = torch.CPU(20)

// onDevice returns a tensor of the CPU where operators of a device can use it: on a GPU as a copy,
// which is on no account. It belongs to c.
func onDevice(c *torch.Ctx, d torch.Device, t *torch.Tensor) *torch.Tensor {
	if t.On(d) {
		return t
	}
	there := torch.NewCtx(torch.Options{Device: d})
	defer there.Close()
	var moved *torch.Tensor
	there.Unlimited(func() { moved = there.CopyHere(t) })
	return c.Adopt(there.Keep(moved)).SetRequiresGrad(t.RequiresGrad())
}

// batch makes the batch of a step for a pipe: the input on the device of the first stage, the target
// on that of the last. It belongs to c, which is on the CPU.
func (q problem) batch(c *torch.Ctx, stages []*pipe.Stage, step int) pipe.Batch {
	x := onDevice(c, stages[0].Device, q.input(c, step))
	y := onDevice(c, stages[len(stages)-1].Device, q.target(c, step))
	return pipe.Batch{Input: pipe.Rows(x), Target: pipe.Rows(y), Step: new(int64(step))}
}

// plain is plainOn the first device for tests.
func (q problem) plain(chunks int64, seed uint64) record {
	return q.plainOn(torchtest.Device(0), chunks, seed)
}

// plainOn trains without a pipe: a loop over micro-batches, each forward and backward of the whole
// model.
func (q problem) plainOn(d torch.Device, chunks int64, seed uint64) record {
	return q.plainReplicas(d, 1, chunks, seed)
}

// parts are the sizes of the parts of n rows, longer ones first.
func parts(n, m int64) (out []int64) {
	m = min(n, m)
	for i := range m {
		out = append(out, n/m)
		if i < n%m {
			out[i]++
		}
	}
	return out
}

// plainReplicas trains without a pipe: for each replica a loop over its micro-batches from gradients
// of zero, and then the sum of the replicas' gradients in their order. Buffers are those that replica
// 0 leaves.
func (q problem) plainReplicas(d torch.Device, replicas, chunks int64, seed uint64) record {
	// autograd orders what is used several times by numbers that it counts on each thread
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c := torch.NewCtx(torch.Options{Device: d, Threads: max(q.threads, 1), Autocast: q.autocast})
	defer c.Close()
	b := torch.NewCtx(torch.Options{Device: aside, Threads: 1})
	defer b.Close()
	model := q.model()
	defer nn.Free(model)
	nn.Materialise(c, nn.State(model), seed)
	var losses []float64
	var r record
	for step := range q.steps {
		nn.ZeroGrads(model)
		q.sets(step, model)
		x, y := onDevice(b, d, q.input(b, step)), onDevice(b, d, q.target(b, step))
		start, left := nn.CopyBuffers(nn.Buffers(model)), func() {} // what replica 0 leaves
		sums := map[string]*torch.Tensor{}
		row, microBatch, total := int64(0), 0, 0.0
		for k, rows := range parts(q.rows, replicas) {
			start()
			loss := 0.0
			var deferred *nn.Deferred
			if q.deferred {
				deferred = new(nn.Deferred)
			}
			for _, n := range parts(rows, chunks) {
				weight := 1.0
				if q.loss.Reduction() == torch.ReduceMean {
					weight = float64(n) / float64(q.rows)
				}
				c.SetGrad(true)
				ctx := nn.NewCtx(c, nn.Config{Training: true, MicroBatch: microBatch,
					MicroBatches: len(parts(rows, chunks)),
					Seed:         torch.Mix(seed, uint64(step)), Deferred: deferred})
				l := q.loss.Forward(ctx, model.Forward(ctx, c.Narrow(x, 0, row, n)), c.Narrow(y, 0, row, n))
				loss += float64(torch.Item[float32](l)) * weight
				c.SetGrad(false)
				c.Backward([]*torch.Tensor{l},
					[]*torch.Tensor{c.Fill_(c.Op("aten::empty_like", l), weight)}, false)
				row, microBatch = row+n, microBatch+1
			}
			if q.deferred {
				deferred.Commit(nn.NewCtx(c, nn.Config{}))
			}
			total += loss
			for _, p := range nn.Params(model) {
				if g := c.GradOf(p.Tensor()); g == nil {
				} else if sums[p.Name] == nil {
					sums[p.Name] = g
				} else {
					sums[p.Name] = c.Add(sums[p.Name], g)
				}
			}
			nn.ZeroGrads(model)
			if k == 0 {
				left = nn.CopyBuffers(nn.Buffers(model))
			}
		}
		left()
		for _, p := range nn.Params(model) {
			p.Tensor().SetGradOf(sums[p.Name])
		}
		losses = append(losses, total)
		if step == q.steps-1 {
			r = snapshot(model, losses, gradient)
		}
		descend(c, nn.Params(model))
		c.Close()
		b.Close()
	}
	after := snapshot(model, losses, func(nn.NamedParam) []byte { return nil })
	for _, s := range nn.State(model) {
		r.values[s.Name] = after.values[s.Name]
	}
	return r
}

// test is what testing.T and rapid.T have in common.
type test interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

// piped trains the same with a pipe on the devices for tests.
func (q problem) piped(t test, cfg pipe.Config) record {
	t.Helper()
	return q.pipedAs(t, onDevices(cfg))
}

// pipedAs trains the same with a pipe.
func (q problem) pipedAs(t test, cfg pipe.Config) record {
	t.Helper()
	model := q.model()
	p := must.Get(pipe.New(model, cfg))(t)
	defer nn.Free(model)
	defer p.Close()
	if q.link != nil {
		p.SetLink(q.link)
	}
	late := delays{func(pipe.Batch) {}, func() {}}
	if q.delay != nil {
		late = q.delay(p)
	}
	defer func() { late.end() }()
	c := torch.NewCtx(torch.Options{Threads: 1, Device: aside})
	defer c.Close()
	var losses []float64
	var r record
	for step := range q.steps {
		nn.ZeroGrads(model)
		q.sets(step, model)
		b := q.batch(c, p.Stages(), step)
		late.give(b)
		result := must.Get(p.Step(context.Background(), b, q.loss))(t)
		if want := min(cfg.Chunks, int(q.rows)); result.MicroBatches != want {
			t.Fatalf("%d micro-batches, want %d", result.MicroBatches, want)
		}
		losses = append(losses, result.Loss)
		if step == q.steps-1 {
			r = snapshot(model, losses, gradient)
		}
		must.Do(t, p.OnStages(context.Background(), func(stage int, c *torch.Ctx) error {
			descend(c, p.Stages()[stage].Params())
			return nil
		}))
		c.Close()
	}
	after := snapshot(model, losses, func(nn.NamedParam) []byte { return nil })
	for _, s := range nn.State(model) {
		r.values[s.Name] = after.values[s.Name]
	}
	return r
}

func normal(shape ...int64) func(*torch.Ctx, int) *torch.Tensor {
	return func(c *torch.Ctx, step int) *torch.Tensor {
		c.SetSeed(uint64(step) + 100)
		return c.Normal_(c.Empty(torch.Float32, shape...), 0, 1)
	}
}

// later draws what another function draws so many steps later.
func later(steps int, f func(*torch.Ctx, int) *torch.Tensor) func(*torch.Ctx, int) *torch.Tensor {
	return func(c *torch.Ctx, step int) *torch.Tensor { return f(c, step+steps) }
}

func classes(rows, n int64) func(*torch.Ctx, int) *torch.Tensor {
	return func(c *torch.Ctx, step int) *torch.Tensor {
		out := make([]int64, rows)
		for i := range out {
			out[i] = int64(torch.Mix(uint64(step), uint64(i)) % uint64(n))
		}
		return torch.From(c, out)
	}
}

// cpus are the first n CPU devices.
func cpus(n int) (list []torch.Device) {
	for i := range n {
		list = append(list, torch.CPU(i))
	}
	return list
}

// onDevices puts the stages of a configuration for CPUs on the devices for tests: the i-th in place
// of cpu:i. Where there are fewer, stages that were on different CPUs share a device, and each has a
// worker of its own, with a stream of its own on a GPU. With the policy optimal they share the
// worker: memory is planned for one worker of each device.
func onDevices(cfg pipe.Config) pipe.Config {
	if cfg.Devices == nil {
		cfg.Devices = cpus(max(len(cfg.Balance), 1))
	}
	var devices []torch.Device
	var lanes []int
	for _, d := range cfg.Devices {
		devices, lanes = append(devices, torchtest.Device(d.Index)), append(lanes, d.Index)
	}
	if cfg.Devices = devices; strings.Contains(cfg.Checkpoint.String(), string(pipe.Optimal)) {
		return cfg
	}
	return cfg.Apart(lanes...)
}

// started is a pipe that ends with the test, and its model's memory with it.
func started(t *testing.T, model *nn.Sequential, cfg pipe.Config) *pipe.Pipe {
	t.Helper()
	p := must.Get(pipe.New(model, cfg))(t)
	t.Cleanup(func() {
		p.Close()
		nn.Free(model)
	})
	return p
}

// floats reads float32 numbers out of a tensor's bytes.
func floats(b []byte) []float32 {
	var out []float32
	for ; len(b) >= 4; b = b[4:] {
		out = append(out, math.Float32frombits(binary.LittleEndian.Uint32(b)))
	}
	return out
}

// eval is Infer of a model of one tensor to one tensor. The result is the caller's to Free.
func eval(p *pipe.Pipe, ctx context.Context, x *torch.Tensor) (*torch.Tensor, error) {
	result, err := p.Infer(ctx, pipe.Batch{Input: pipe.Rows(x)})
	if err != nil {
		return nil, err
	}
	return result.Output[0], nil
}

// inMode is the batch for Infer in training or in evaluation mode.
func inMode(b pipe.Batch, training bool) pipe.Batch {
	b.Training = training
	return b
}

// randomAutocast is bfloat16 now and then.
func randomAutocast(t *rapid.T) torch.Autocast {
	if rapid.IntRange(0, 3).Draw(t, "autocast") == 0 {
		return torch.AutocastBFloat16
	}
	return torch.AutocastOff
}

// linear is a Linear with its ReLU, as small as a layer gets.
type linear struct {
	nn.Base
	weight, bias *nn.Param
}

func newLinear(in, out int64) *linear {
	l := &linear{}
	l.weight = l.Param("weight", nn.FanIn(in), out, in)
	l.bias = l.Param("bias", nn.FanIn(in), out)
	return l
}

func (l *linear) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	y := c.Linear(x, l.weight.Tensor(), l.bias.Tensor())
	z := c.Op("penstock::relu", y)
	y.Free()
	return z
}

type squares struct{}

func (squares) Forward(c *nn.Ctx, y, t *torch.Tensor) *torch.Tensor {
	return c.Op("aten::mse_loss", y, t, torch.ReduceMean)
}
func (squares) Reduction() torch.Reduction { return torch.ReduceMean }

// newCtx returns a context that is closed when the test ends.
func newCtx(t testing.TB, o torch.Options) *torch.Ctx {
	c := torch.NewCtx(o)
	t.Cleanup(c.Close)
	return c
}
