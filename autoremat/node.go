package autoremat

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"penstock.example/internal/engine"
	"penstock.example/nn"
	"penstock.example/pipe"
	"penstock.example/torch"
)

// node is one forward of the module with the backwards through it. It is the graph's node for the
// model: the graph holds it, and with it the run that keeps what backward needs.
type node struct {
	m     *Module
	c     *nn.Ctx      // the caller's context, which gets the path of a layer that fails
	kind  string       // of the batch
	begun torch.Memory // of the device when the measurement of the loss began
	in    []int        // by element of the input: its index in inputs
	out   []int        // by element of the output: its index among the distinct elements

	mu     sync.Mutex // guards the run against Forget, which may come on any thread
	run    *pipe.Run
	inputs []*torch.Tensor // distinct and detached
	shared []*torch.Tensor // parameters that are used outside of the model as well

	overwritten func() int // the index of an input that was overwritten since forward began, or -1
}

// train runs the model with a graph of its own under one node. The result belongs to c.
func (m *Module) train(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
	n := &node{m: m, c: c, kind: kindOf(c, xs)}
	fail := func(err error) {
		n.Forget()
		n.panic(c.Ctx, xs, err)
	}
	given, in := engine.Distinct(xs)
	n.in = in
	for i, x := range given {
		if x == nil || x.Freed() {
			fail(fmt.Errorf("autoremat: input %d does not exist", i))
		}
		n.inputs = append(n.inputs, c.Keep(c.Detach(x)).SetRequiresGrad(x.RequiresGrad()))
	}
	n.overwritten = engine.Watch(n.inputs)
	batch := pipe.Batch{Within: c.Fork(c.Ctx, nn.Config{})}
	for _, k := range in {
		batch.Input = append(batch.Input, pipe.NoChunk(n.inputs[k])...)
	}
	p, err := m.planFor(c, n.kind, &batch)
	if err != nil {
		fail(err)
	}
	if n.run, err = p.Forward(context.Background(), batch); err != nil {
		fail(err)
	}
	for _, q := range nn.SharedBeyond(m.model) {
		n.shared = append(n.shared, q.Tensor())
	}
	once, at := engine.Distinct(n.run.Output())
	n.out = at
	attached := engine.Attach(c.Ctx, slices.Concat(given, n.shared), once, n)
	torch.FreeAll(once)
	ys := make([]*torch.Tensor, len(at))
	for i, k := range at {
		ys[i] = attached[k]
	}
	m.beginMeasurement(n)
	return ys
}

// kindOf names a kind of batches. Losses of one kind take the same bytes.
func kindOf(c *nn.Ctx, xs []*torch.Tensor) string {
	return strings.Join(torch.Describe(xs), ", ") + c.Autocast().String()
}

// panic ends a call of the module with the failure of a layer.
func (n *node) panic(c *torch.Ctx, xs []*torch.Tensor, err error) {
	var at *pipe.Error
	if errors.As(err, &at) {
		if err = at.Err; at.Layer != "" {
			n.c.FailedAt(at.Layer)
		}
	}
	var own *torch.Error
	if errors.As(err, &own) {
		panic(own)
	}
	panic(&torch.Error{Op: "autoremat", Args: torch.Describe(xs), Device: c.Device(), Err: err})
}

func (n *node) Backward(c *torch.Ctx, a *engine.Arrival) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.m.setLossBytes(n)
	if i := n.overwritten(); i >= 0 {
		n.panic(c, n.inputs,
			fmt.Errorf("input %d was overwritten between forward and backward; give the module a Clone", i))
	}
	grads := make([]*torch.Tensor, len(n.out))
	for i, k := range n.out {
		grads[i], a.Grads[k] = a.Grads[k], nil // a repeated element has its gradient at the first place
	}
	restore := engine.HideGrads(c, n.shared...)
	defer func() {
		for i, t := range n.shared { // the graph sums them with the gradients of uses outside
			a.InputGrads[len(n.inputs)+i] = c.GradOf(t)
		}
		restore()
	}()
	backward := n.run.Backward
	if !a.Last {
		backward = n.run.BackwardRetained
	}
	if err := backward(context.Background(), grads...); err != nil {
		torch.FreeAll(grads)
		n.panic(c, n.inputs, err)
	}
	for i, g := range n.run.InputGrads() {
		if k := n.in[i]; c.Adopt(g) != nil && a.Wanted[k] {
			a.InputGrads[k] = g
		}
	}
}

func (n *node) Forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.run != nil {
		n.run.Close()
	}
	torch.FreeAll(n.inputs)
	n.inputs = nil
}

// beginMeasurement begins to measure the loss of the latest forward, unless a loss of its kind was
// measured. A loss takes the peak between forward and backward, less the live bytes after forward.
func (m *Module) beginMeasurement(n *node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lossBytes[n.kind] == 0 {
		n.begun, m.measured = m.device.Memory(), n
		m.device.ResetPeak()
	}
}

// setLossBytes sets the bytes of the loss of a node, at its backward, if they are being measured.
func (m *Module) setLossBytes(n *node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.measured == n {
		m.lossBytes[n.kind] = max(m.device.Memory().Peak-n.begun.Live, 1)
		m.endMeasurement()
	}
}

// endMeasurement ends a measurement, if there is one, and restores the device's peak. m.mu is held.
func (m *Module) endMeasurement() {
	if m.measured != nil {
		engine.RaisePeak(m.device, m.measured.begun.Peak)
		m.measured = nil
	}
}
