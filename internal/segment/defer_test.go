package segment_test

import (
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"penstock.example/internal/must"
	"penstock.example/internal/segment"
	"penstock.example/internal/torchtest"
	"penstock.example/nn"
	"penstock.example/remat"
	"penstock.example/torch"
)

// microBatches runs three micro-batches by operations, all forwards first. order has the
// micro-batches whose operations after the loss are performed, and -1 where the weights of the next
// one get their gradients; nil is backwards in one part. It returns what they leave.
func microBatches(model *nn.Sequential, s *segment.Segment, ops []remat.Op, order []int) map[string]string {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c := torch.NewCtx(torch.Options{Device: torchtest.Device(0), Threads: 1, Seed: 3})
	defer c.Close()
	nn.Materialise(c, nn.State(model), 1)
	defer nn.Free(model)
	loss := 0
	for ops[loss].Kind != remat.LossStep {
		loss++
	}
	var list []*segment.Execution
	for range 3 {
		e := begin(s, training, c.Keep(c.Randn(6, 8)))
		defer e.Free()
		for _, op := range ops[:loss] {
			e.Do(c, op)
		}
		sendOn(e)
		list = append(list, e)
	}
	back := func(e *segment.Execution) {
		e.Do(c, ops[loss])
		e.GiveGrads(e.Units(), []*torch.Tensor{c.Keep(c.Ones(torch.Float32, 6, 8))}, nil)
		for _, op := range ops[loss+1:] {
			e.Do(c, op)
		}
	}
	if order == nil {
		for _, e := range list {
			back(e)
		}
	}
	next := 0
	for _, i := range order {
		if i < 0 {
			for n := list[next].Deferred(); n > next%2; n-- { // of some one by one, or all but one
				list[next].Weight(c)
			}
			list[next].Weights(c)
			next++
			continue
		}
		list[i].Defer = true
		back(list[i])
	}
	return trained(model, c.Zeros(torch.Float32))
}

// sendOn takes the output of an execution, as who sends it to the next stage does, and drops it.
func sendOn(e *segment.Execution) {
	xs, skips := e.Take(e.Units())
	torch.FreeAll(xs)
	torch.FreeAll(skips)
}

// Whatever is kept and what is run again, backwards in two parts give the bits of those in one.
func TestDeferredWeightsGiveTheSameBits(t *testing.T) {
	torchtest.Check(t)
	orders := [][]int{{0, -1, 1, -1, 2, -1}, {0, 1, -1, 2, -1, -1}, {0, 1, 2, -1, -1, -1}}
	rapid.Check(t, func(t *rapid.T) {
		units := cuts(t, network().Layers())
		ops := persistent(t, 0, len(units), len(units))
		order := rapid.SampledFrom(orders).Draw(t, "order")
		run := func(order []int) map[string]string {
			m := network()
			return microBatches(m, whole(t, m, units...), ops, order)
		}
		if diff := cmp.Diff(run(nil), run(order)); diff != "" {
			t.Errorf("units %v, %v, order %v: %s", units, ops, order, diff)
		}
	})
}

// What is held for the weights is in the account: a linear layer's input and the gradient of its
// output. A unit whose input wants no gradient defers all of its backward.
func TestDeferredWeightsHoldInputsAndGradients(t *testing.T) {
	device := torchtest.Device(1)
	c := torchtest.New(t, torch.Options{Device: device, Seed: 3, Threads: 1})
	const width, rows = 16, 32
	const one = 4 * width * rows
	m := nn.NewSequential(nn.NewLinear(width, width), nn.NewGELU(), nn.NewLinear(width, width), nn.NewGELU(),
		nn.NewLinear(width, width), nn.NewTanh())
	nn.Materialise(c, nn.State(m), 1)
	defer nn.Free(m)
	for _, tt := range []struct {
		units []int
		ops   string
		wants bool // the gradient of the segment's input is wanted
		held  int64
		of    string
	}{
		{[]int{6}, "S0 L B0", true, 6 * one, "x and dy of three linears"},
		{[]int{2, 2, 2}, "S0 S1 S2 L B2 B1 B0", true, 6 * one, "x and dy of three linears"},
		{[]int{2, 2, 2}, "K0 F1 K2 L S2 B2 K0 S1 B1 S0 B0", true, 6 * one, "x and dy of three linears"},
		{[]int{2, 2, 2}, "S0 S1 S2 L B2 B1 B0", false, 7 * one,
			"that, and GELU's input, as the first unit goes back later"},
		{[]int{6}, "S0 L B0", false, 7 * one,
			"the graph: inputs of linears and GELUs, the output of tanh, and its gradient"},
	} {
		begun := device.Memory().Live
		e := &segment.Execution{}
		e.Begin(whole(t, m, tt.units...), training)
		e.Defer = true
		e.Send(0, segment.Arrival{Tensors: []*torch.Tensor{c.Keep(c.Randn(rows, width))},
			Wants: []bool{tt.wants}})
		ops := must.Get(remat.ParseOps(tt.ops))(t)
		for _, op := range ops {
			e.Do(c, op)
			if op.Kind == remat.LossStep {
				sendOn(e)
				e.GiveGrads(len(tt.units), []*torch.Tensor{c.Keep(c.Ones(torch.Float32, rows, width))}, nil)
			}
		}
		xs, _ := e.TakeGrads(0)
		torch.FreeAll(xs)
		if got := device.Memory().Live - begun; got != tt.held {
			t.Errorf("units %v, %s, input gradient %v: %d bytes are held, want %d: %s", tt.units, tt.ops,
				tt.wants, got, tt.held, tt.of)
		}
		e.Weights(c)
		e.Weights(c) // nothing is left
		for _, p := range nn.Params(m) {
			p.Tensor().SetGradOf(nil)
		}
		if got := device.Memory().Live - begun; got != 0 {
			t.Errorf("units %v, %s: %d bytes are live after all", tt.units, tt.ops, got)
		}
		e.Free()
	}
}

// A backward after which another follows computes all at once.
func TestRetainedGraphsDeferNothing(t *testing.T) {
	c := torchtest.New(t, torch.Options{Seed: 3, Threads: 1})
	m := nn.NewSequential(nn.NewLinear(8, 8))
	nn.Materialise(c, nn.State(m), 1)
	defer nn.Free(m)
	e := begin(whole(t, m, 1), training, c.Keep(c.Ones(torch.Float32, 6, 8)))
	defer e.Free()
	e.Defer, e.Retain = true, true
	for range 2 {
		for _, op := range []remat.Op{{Kind: remat.ForwardSave}, {Kind: remat.LossStep},
			{Kind: remat.Backward}} {
			if op.Kind == remat.ForwardSave && !e.Retain {
				continue
			}
			e.Do(c, op)
			if op.Kind == remat.LossStep {
				e.GiveGrads(1, []*torch.Tensor{c.Keep(c.Ones(torch.Float32, 6, 8))}, nil)
			}
		}
		if got := nn.Params(m)[0].Tensor().HasGrad(); got != e.Retain {
			t.Errorf("the weight has a gradient: %v, another backward follows: %v", got, e.Retain)
		}
		nn.Params(m)[0].Tensor().SetGradOf(nil)
		e.Retain = false
	}
	e.Weights(c)
	if !nn.Params(m)[0].Tensor().HasGrad() {
		t.Error("no gradient after the second part")
	}
}
