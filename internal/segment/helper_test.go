package segment_test

import (
	"runtime"

	"penstock.example/internal/must"
	"penstock.example/internal/segment"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/remat"
	"penstock.example/torch"
)

// layer is a layer made of a function.
type layer struct {
	nn.Base
	forward func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor
}

func (l *layer) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return l.forward(c, x) }

// stash hands its input on, and to whoever pops the name.
func stash(name string) nn.Layer {
	l := &layer{forward: func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
		c.Stash(name, x)
		return x
	}}
	l.Stashes(name)
	return l
}

// pop multiplies by what was stashed.
func pop(name string) nn.Layer {
	l := &layer{forward: func(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Mul(x, c.Pop(name)) }}
	l.Pops(name)
	return l
}

// network has all that crosses boundaries: a skip that is popped twice, one that overlaps it, a weight
// that three layers use, dropout, batch norm, a layer that works in place.
func network() *nn.Sequential {
	first := nn.NewLinear(8, 8)
	return nn.NewSequential(
		first, stash("a"), nn.NewTanh(), nn.NewLinearShared(first.Weight,
			true), stash("b"), nn.NewDropout(0.3), nn.NewBatchNorm1d(8, nn.BatchNormConfig{}), nn.NewReLUInPlace(),
		pop("a"), pop("b"), nn.NewLinear(8, 8), pop("a"), nn.NewLinearShared(first.Weight,
			false), nn.NewTanh(),
	)
}

// training makes the contexts of a training step.
func training(c *torch.Ctx, run segment.Run) *nn.Ctx {
	return nn.NewCtx(c, nn.Config{Training: true, Seed: 5, Checkpointing: run.More, Recomputing: run.Again,
		Spans: run.Graph, Skips: run.Skips})
}

// begin is an execution of a segment that is a whole model, on an input.
func begin(s *segment.Segment, context segment.NewContext, x *torch.Tensor) *segment.Execution {
	e := &segment.Execution{}
	e.Begin(s, context)
	e.Send(0, segment.Arrival{Tensors: []*torch.Tensor{x}})
	return e
}

// test is what testing.T and rapid.T have in common.
type test interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
	Errorf(string, ...any)
}

// whole cuts a model into units of so many layers.
func whole(t test, model *nn.Sequential, units ...int) *segment.Segment {
	t.Helper()
	routes := must.Get(model.SkipRoutes())(t)
	layers := model.Layers()
	s := must.Get(segment.New(segment.Config{Layers: layers, Routes: routes, Last: len(layers),
		Units: units}))(t)
	return s
}

// trained is what a forward and backwards leave: the output, gradients, parameters and buffers, as bytes.
func trained(model *nn.Sequential, output *torch.Tensor) map[string]string {
	c := torch.NewCtx(torch.Options{})
	defer c.Close()
	out := map[string]string{"output": string(torch.Bytes(output))}
	for _, s := range nn.State(model) {
		out[s.Name] = string(torch.Bytes(s.Tensor()))
		if g := c.GradOf(s.Tensor()); g != nil {
			out["gradient of "+s.Name] = string(torch.Bytes(g))
		}
	}
	return out
}

// plain runs a model as it is, forward once and backward so many times, from ones.
func plain(model *nn.Sequential, backwards int) map[string]string {
	runtime.LockOSThread() // autograd numbers nodes on each thread
	defer runtime.UnlockOSThread()
	c := torch.NewCtx(torch.Options{Device: torchtest.Device(0), Threads: 1, Seed: 3})
	defer c.Close()
	nn.Materialise(c, nn.State(model), 1)
	defer nn.Free(model)
	x := c.Normal_(c.Empty(torch.Float32, 6, 8), 0, 1)
	c.SetGrad(true)
	y := model.Forward(nn.NewCtx(c, nn.Config{Training: true, Seed: 5}), x)
	for k := range backwards {
		c.Backward([]*torch.Tensor{y}, []*torch.Tensor{c.Op("aten::ones_like", y)}, k < backwards-1)
	}
	return trained(model, y)
}

// executed runs a model by operations. With two backwards those from the loss on are repeated.
func executed(t test, model *nn.Sequential, s *segment.Segment, ops []remat.Op,
	backwards int) map[string]string {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c := torch.NewCtx(torch.Options{Device: torchtest.Device(0), Threads: 1, Seed: 3})
	defer c.Close()
	nn.Materialise(c, nn.State(model), 1)
	defer nn.Free(model)
	e := begin(s, training, c.Keep(c.Normal_(c.Empty(torch.Float32, 6, 8), 0, 1)))
	defer e.Free()
	loss := 0
	for ops[loss].Kind != remat.LossStep {
		e.Do(c, ops[loss])
		loss++
	}
	out, _, saved := e.Output()
	if !saved {
		out, _ = e.Take(e.Units())
		defer out[0].Free()
	}
	y := c.Clone(c.Detach(out[0]))
	for k := range backwards {
		e.Retain = k < backwards-1
		e.Do(c, ops[loss])
		e.GiveGrads(e.Units(), []*torch.Tensor{c.Keep(c.Op("aten::ones_like", y))}, nil)
		for _, op := range ops[loss+1:] {
			e.Do(c, op)
		}
		xs, _ := e.TakeGrads(0)
		for _, g := range xs {
			g.Free()
		}
	}
	return trained(model, y)
}
