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
	c     *nn.Ctx // the caller's context, which gets the path of a layer that fails
	kind  string  // of the batch
	loss  torch.Memory
	index []int // by element of the input: its index among the distinct ones
	out   []int // by element of the output, likewise

	mu      sync.Mutex // guards the run against Forget, which may come on any thread
	run     *pipe.Run
	inputs  []*torch.Tensor // distinct and detached
	changes []int64         // of the inputs when forward began
	shared  []*torch.Tensor // parameters that are used outside of the model as well
}

// train runs the model with a graph of its own under one node. The result belongs to c.
func (m *Module) train(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
	n := &node{m: m, c: c, kind: kindOf(c, xs)}
	fail := func(err error) {
		n.Forget()
		n.panic(c.Ctx, xs, err)
	}
	given, index := engine.Distinct(xs)
	n.index = index
	for i, x := range given {
		if x == nil || x.Freed() {
			fail(fmt.Errorf("autoremat: input %d does not exist", i))
		}
		n.inputs = append(n.inputs, c.Keep(c.Detach(x)).SetRequiresGrad(x.RequiresGrad()))
		n.changes = append(n.changes, x.Changes())
	}
	batch := pipe.Batch{Within: c.Fork(c.Ctx, nn.Config{})}
	for _, k := range index {
		batch.Input = append(batch.Input, pipe.NoChunk(n.inputs[k])...)
	}
	m.observe(nil)
	p, err := m.begin(c, n.kind, &batch)
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
	m.observe(n)
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
	n.m.measureLoss(n)
	for i, x := range n.inputs {
		if x.Changes() != n.changes[i] {
			n.panic(c, n.inputs,
				fmt.Errorf("input %d was overwritten between forward and backward; give the "+
					"module a Clone", i))
		}
	}
	grads := make([]*torch.Tensor, len(n.out))
	for i, k := range n.out {
		grads[i], a.Grads[k] = a.Grads[k], nil // a tensor that is there twice has it at its first place
	}
	defer n.setAside(c)(a)
	backward := n.run.Backward
	if !a.Last {
		backward = n.run.BackwardRetained
	}
	if err := backward(context.Background(), grads...); err != nil {
		torch.FreeAll(grads)
		n.panic(c, n.inputs, err)
	}
	for i, g := range n.run.InputGrads() {
		if k := n.index[i]; c.Adopt(g) != nil && a.Wanted[k] {
			a.InputGrads[k] = g
		}
	}
}

// setAside removes the gradients of parameters that are also used outside. After a backward the function
// that it returns moves the new gradients to the node's inputs, where the graph sums them, and puts the
// old ones back.
func (n *node) setAside(c *torch.Ctx) func(a *engine.Arrival) {
	before := make([]*torch.Tensor, len(n.shared))
	for i, t := range n.shared {
		before[i] = c.GradOf(t)
		t.SetGradOf(nil)
	}
	return func(a *engine.Arrival) {
		for i, t := range n.shared {
			a.InputGrads[len(a.InputGrads)-len(n.shared)+i] = c.GradOf(t)
			t.SetGradOf(before[i])
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

// observe begins to measure the loss of a node, unless its kind is measured, and ends an earlier
// measurement. A loss takes the bytes of the peak between forward and backward, less the live ones after
// forward.
func (m *Module) observe(n *node) {
	m.lossMu.Lock()
	defer m.lossMu.Unlock()
	if o := m.observed; o != nil {
		engine.RaisePeak(m.device, o.loss.Peak)
	}
	m.observed = nil
	if n != nil && m.loss[n.kind] == 0 {
		n.loss, m.observed = m.device.Memory(), n
		m.device.ResetPeak()
	}
}

// measureLoss ends the measurement of a node's loss, at its backward.
func (m *Module) measureLoss(n *node) {
	m.lossMu.Lock()
	defer m.lossMu.Unlock()
	if m.observed == n {
		m.loss[n.kind] = max(m.device.Memory().Peak-n.loss.Live, 1)
		engine.RaisePeak(m.device, n.loss.Peak)
		m.observed = nil
	}
}

// lossBytes is the bytes of the loss of a kind of batches, or 0 if it was not measured.
func (m *Module) lossBytes(kind string) int64 {
	m.lossMu.Lock()
	defer m.lossMu.Unlock()
	return m.loss[kind]
}
