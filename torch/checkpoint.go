package torch

import (
	"fmt"
	"slices"

	"penstock/internal/arg"
	"penstock/internal/shim"
)

// Checkpoint is f(c, in), whose graph is not kept: it is made again in backward (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016). Between forward and backward
// the graph holds in and what f returned, and nothing else.
//
// f runs at once, with grad off. In a backward through what it returned it runs again, inside of that call: on a new context with the same device, threads, autocast and state of
// Draws as at first, with grad on (Ctx.Grad tells the runs apart), and with inputs of the same memory outside of the graph. It must compute the same again. Its gradients are added to
// the parameters' and go on to in. Where grad is off, or neither an input needs a gradient nor parameters behind f do (trained), it is f(c, in) and no more.
//
// f makes its tensors through the context it is given, keeps none of them, and does not overwrite its inputs: nor may anybody until backward. Both are errors. Tensors of in and of the
// result may be nil, or of types without gradients. What f returns without needing a gradient in the second run gets none. The result belongs to c, which frees the rest. f may call
// Checkpoint.
//
// Gradients of parameters behind f are added to what they have while f's second run goes back, before those of other uses are summed. Parameters that are used outside of f too are to be
// given as shared: then the graph sums all uses, latest first, as if there were no checkpoint. Nobody else may go back through them at the same time.
//
// A panic of f in backward, or Goexit, is one of the Backward that was called first; the sequence number of an *Error is that of the outermost checkpoint.
func (c *Ctx) Checkpoint(f func(c *Ctx, in []*Tensor) []*Tensor, in []*Tensor, trained bool, shared ...*Tensor) []*Tensor {
	arg.Must(f, "torch: Checkpoint: the function", "what computes the result")
	if !c.Grad() || !trained && !slices.ContainsFunc(in, needsGrad) {
		return f(c, in)
	}
	in = slices.Clone(in)
	again := &checkpoint{f: f, shared: shared}
	again.seed, again.draws = c.Draws()

	mark := c.Mark()
	defer func() { c.Release(mark) }() // also what a failing f leaves
	out := again.first(c, in)
	attached := c.attach("checkpoint", true, slices.Concat(in, shared), out, again.recompute, nil)
	c.Release(mark)
	result := c.ownAll(attached)
	mark = c.Mark()
	return result
}

func needsGrad(t *Tensor) bool { return t != nil && t.RequiresGrad() }

func handlesOf(list []*Tensor) []shim.Handle {
	out := make([]shim.Handle, len(list))
	for i, t := range list {
		out[i] = t.handle()
	}
	return out
}

// checkpoint is what a node has to run again.
type checkpoint struct {
	f           func(*Ctx, []*Tensor) []*Tensor
	shared      []*Tensor // the last inputs of the node, which f is not given
	seed, draws uint64
}

// first runs f without a graph and checks that in is as it was.
func (k *checkpoint) first(c *Ctx, in []*Tensor) (out []*Tensor) {
	changes := make([]int64, len(in))
	for i, t := range in {
		if t != nil {
			changes[i] = t.Changes()
		}
	}
	c.NoGrad(func() { out = k.f(c, slices.Clone(in)) })
	for i, t := range in {
		if t != nil && t.Changes() != changes[i] {
			panic(&Error{Op: "checkpoint", Args: Describe(in), Device: c.device,
				Message: fmt.Sprintf("the function overwrote input %d, which it needs again in backward; let it work on a clone", i)})
		}
	}
	return out
}

// recompute runs f with a graph and goes back through it.
func (k *checkpoint) recompute(c *Ctx, r *shim.Recomputation) {
	c.SetGrad(true)
	c.ResumeDraws(k.seed, k.draws)

	// A gate, because a leaf would change the layout of its gradient, and with it the bits of what is summed from it.
	n := len(r.Inputs) - len(k.shared)
	in, mailboxes := make([]*Tensor, n), make([]*Tensor, n)
	for i, h := range r.Inputs[:n] {
		if h == 0 {
			continue
		}
		shim.Retain(h)
		in[i] = c.own(h)
		if in[i].RequiresGrad() {
			mailboxes[i] = c.Mailbox()
			in[i] = c.Gate(mailboxes[i], in[i])
		}
	}
	out := k.f(c, in)
	outputs, grads := k.roots(c, out, r.Grads)
	c.Release(0, slices.Concat(mailboxes, outputs, grads)...) // the graph has what it needs
	if len(outputs) > 0 {
		defer k.setAside(c)()
		c.Backward(outputs, grads, false)
		for i, t := range k.shared {
			r.InputGrads[n+i] = shim.Grad(t.handle())
		}
	}
	for i, m := range mailboxes {
		if m != nil {
			r.InputGrads[i] = shim.Grad(m.handle())
		}
	}
}

// setAside takes the gradients of shared parameters away until the function that it returns is called, which drops what has come in the meantime.
func (k *checkpoint) setAside(c *Ctx) (restore func()) {
	before := make([]*Tensor, len(k.shared))
	for i, t := range k.shared {
		before[i] = c.GradOf(t)
		t.SetGradOf(nil)
	}
	return func() {
		for i, t := range k.shared {
			t.SetGradOf(before[i])
		}
	}
}

// roots are the outputs with a gradient, and the gradients.
func (k *checkpoint) roots(c *Ctx, out []*Tensor, handles []shim.Handle) (outputs, grads []*Tensor) {
	if len(out) != len(handles) {
		panic(&Error{Op: "checkpoint", Args: Describe(out), Device: c.device,
			Message: fmt.Sprintf("the function returned %d tensors, but %d when it first ran; it must compute the same again", len(out), len(handles))})
	}
	for i, h := range handles {
		if h == 0 || out[i] != nil && !out[i].RequiresGrad() {
			continue
		}
		grad := c.own(h)
		handles[i] = 0
		if was, is := grad.String(), out[i].String(); was != is {
			panic(&Error{Op: "checkpoint", Args: Describe(out), Device: c.device,
				Message: fmt.Sprintf("output %d was %v when the function first ran, and is %v; it must compute the same again", i, was, is)})
		}
		outputs, grads = append(outputs, out[i]), append(grads, grad)
	}
	return outputs, grads
}
