package engine

import (
	"fmt"
	"slices"

	"penstock.example/internal/shim"
	"penstock.example/torch"
)

// Checkpoint returns f(c, in) without keeping the graph, which backward makes again (Chen et al.,
// "Training Deep Nets with Sublinear Memory Cost", 2016). Between forward and backward the graph
// holds only in and what f returned.
//
// f runs at once, with grad off. A backward through its result runs f again, inside that call, on a
// new context with the same device, threads, autocast and state of Draws, with grad on. Ctx.Grad
// tells the runs apart. The inputs then share the memory of in, outside of the graph. f must
// compute the same again. Gradients are added to the parameters' and passed on to in.
//
// Where grad is off, Checkpoint only calls f. It also does where neither an input needs a gradient
// nor, by trained, a parameter that f uses.
//
// f makes its tensors through the context it is given and keeps none of them. It does not overwrite
// its inputs, and nobody else may until backward; both are errors. f may call Checkpoint. Tensors
// of in and of the result may be nil, or of types without gradients. What f returns without needing
// a gradient in the second run gets none. The result belongs to c, which frees the rest.
//
// Gradients of parameters that f uses are added during f's second run, before the gradients of other uses.
// Parameters that are also used outside of f are passed as shared. The graph then sums all uses,
// latest first, as if there were no checkpoint. No other backward through them may run at the same
// time.
//
// A panic or Goexit of f in backward ends the Backward that was called first. The sequence number
// of a *torch.Error is the outermost checkpoint's.
func Checkpoint(c *torch.Ctx, f func(c *torch.Ctx, in []*torch.Tensor) []*torch.Tensor,
	in []*torch.Tensor, trained bool,
	shared ...*torch.Tensor) []*torch.Tensor {
	if !c.Grad() || !trained && !slices.ContainsFunc(in, needsGrad) {
		return f(c, in)
	}
	in = slices.Clone(in)
	again := &checkpoint{f: f, shared: shared}
	again.seed, again.draws = c.Draws()

	mark := c.Mark()
	defer func() { c.Release(mark) }() // also what a failing f leaves
	out := again.first(c, in)
	attached := attach(c, "checkpoint", true, slices.Concat(in, shared), out, again.recompute, nil)
	c.Release(mark)
	result := ownAll(c, attached)
	mark = c.Mark()
	return result
}

func needsGrad(t *torch.Tensor) bool { return t != nil && t.RequiresGrad() }

// checkpoint runs f again for a node.
type checkpoint struct {
	f           func(*torch.Ctx, []*torch.Tensor) []*torch.Tensor
	shared      []*torch.Tensor // the last inputs of the node, which f is not given
	seed, draws uint64
}

// first runs f without a graph and checks that in is as it was.
func (k *checkpoint) first(c *torch.Ctx, in []*torch.Tensor) (out []*torch.Tensor) {
	changes := make([]int64, len(in))
	for i, t := range in {
		if t != nil {
			changes[i] = t.Changes()
		}
	}
	c.NoGrad(func() { out = k.f(c, slices.Clone(in)) })
	for i, t := range in {
		if t != nil && t.Changes() != changes[i] {
			panic(&torch.Error{Op: "checkpoint", Args: torch.Describe(in), Device: c.Device(),
				Message: fmt.Sprintf("the function overwrote input %d, which it needs again in "+
					"backward; let it work on a clone", i)})
		}
	}
	return out
}

// recompute runs f with a graph and runs backward through it.
func (k *checkpoint) recompute(c *torch.Ctx, r *shim.Recomputation) {
	c.SetGrad(true)
	c.ResumeDraws(k.seed, k.draws)

	// Inputs become gates, not leaves. A leaf would change the layout of its gradient, and so the
	// bits of what is summed from it.
	n := len(r.Inputs) - len(k.shared)
	in, mailboxes := make([]*torch.Tensor, n), make([]*torch.Tensor, n)
	for i, h := range r.Inputs[:n] {
		if h == 0 {
			continue
		}
		shim.Retain(h)
		in[i] = c.Own(h)
		if in[i].RequiresGrad() {
			mailboxes[i] = Mailbox(c)
			in[i] = Gate(c, mailboxes[i], in[i])
		}
	}
	out := k.f(c, in)
	outputs, grads := k.roots(c, out, r.Grads)
	c.Release(0, slices.Concat(mailboxes, outputs, grads)...) // the graph has what it needs
	if len(outputs) > 0 {
		defer k.setAside(c)()
		c.Backward(outputs, grads, false)
		for i, t := range k.shared {
			r.InputGrads[n+i] = shim.Grad(t.Handle())
		}
	}
	for i, m := range mailboxes {
		if m != nil {
			r.InputGrads[i] = shim.Grad(m.Handle())
		}
	}
}

// setAside removes the gradients of shared parameters. The function that it returns drops what has
// come in the meantime and puts the old ones back.
func (k *checkpoint) setAside(c *torch.Ctx) (restore func()) {
	before := make([]*torch.Tensor, len(k.shared))
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

// roots returns the outputs that have a gradient, and these gradients.
func (k *checkpoint) roots(c *torch.Ctx, out []*torch.Tensor, handles []shim.Handle) (outputs,
	grads []*torch.Tensor) {
	if len(out) != len(handles) {
		panic(&torch.Error{Op: "checkpoint", Args: torch.Describe(out), Device: c.Device(),
			Message: fmt.Sprintf("the function returned %d tensors, but %d when it first ran; it must "+
				"compute the same again",
				len(out), len(handles))})
	}
	for i, h := range handles {
		if h == 0 || out[i] != nil && !out[i].RequiresGrad() {
			continue
		}
		grad := c.Own(h)
		handles[i] = 0
		if was, is := grad.String(), out[i].String(); was != is {
			panic(&torch.Error{Op: "checkpoint", Args: torch.Describe(out), Device: c.Device(),
				Message: fmt.Sprintf("output %d was %v when the function first ran, and is %v; it must "+
					"compute the same again", i, was, is)})
		}
		outputs, grads = append(outputs, out[i]), append(grads, grad)
	}
	return outputs, grads
}
