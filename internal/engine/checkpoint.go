package engine

import (
	"fmt"
	"slices"

	"penstock.example/torch"
)

// Checkpoint returns f(c, in) without keeping the graph, which backward makes again (Chen et al.,
// "Training Deep Nets with Sublinear Memory Cost", 2016). Between forward and backward the graph
// holds only in and the result.
//
// f runs at once, with grad off. A backward through its result runs f again with grad on, on a new
// context with the same device, threads, autocast and state of Draws. Its inputs then share the
// memory of in, outside of the graph. f must compute the same again. Gradients are added to the
// parameters' and passed on to in.
//
// Checkpoint only calls f if grad is off, or if neither an input nor a parameter of f (trained)
// needs a gradient.
//
// f makes its tensors through its context and keeps none of them. Neither f nor anybody else may
// overwrite the inputs before backward: these are errors. f may call Checkpoint. Tensors of in and
// of the result may be nil, or of types without gradients. A result that needs no gradient in the
// second run gets none. The result belongs to c, which frees the other tensors of f.
//
// Gradients of f's parameters are added during the second run, before the gradients of other uses.
// Parameters that are also used outside of f are passed as shared. The graph then sums all uses,
// latest first, as without a checkpoint. No other backward through them may run at the same time.
//
// A panic or Goexit of f in backward ends the outermost Backward. A *torch.Error gets the sequence
// number of the outermost checkpoint.
func Checkpoint(c *torch.Ctx, f func(c *torch.Ctx, in []*torch.Tensor) []*torch.Tensor,
	in []*torch.Tensor, trained bool, shared ...*torch.Tensor) []*torch.Tensor {
	needsGrad := func(t *torch.Tensor) bool { return t != nil && t.RequiresGrad() }
	if !c.Grad() || !trained && !slices.ContainsFunc(in, needsGrad) {
		return f(c, in)
	}
	in = slices.Clone(in)
	k := &checkpoint{f: f, shared: shared}
	k.seed, k.draws = c.Draws()

	mark := c.Mark()
	defer func() { c.Release(mark) }() // also the tensors of an f that fails
	out := k.firstRun(c, in)
	result := attach(c, "checkpoint", true, slices.Concat(in, shared), out, k)
	c.Release(mark, result...)
	mark = c.Mark()
	return result
}

type checkpoint struct {
	f           func(*torch.Ctx, []*torch.Tensor) []*torch.Tensor
	shared      []*torch.Tensor // inputs of the node after the inputs of f
	seed, draws uint64
}

// firstRun runs f without a graph and checks that it has not changed in.
func (k *checkpoint) firstRun(c *torch.Ctx, in []*torch.Tensor) (out []*torch.Tensor) {
	overwritten := Watch(in)
	c.NoGrad(func() { out = k.f(c, slices.Clone(in)) })
	if i := overwritten(); i >= 0 {
		panic(&torch.Error{Op: "checkpoint", Args: torch.Describe(in), Device: c.Device(),
			Message: fmt.Sprintf("the function overwrote input %d, which it needs again in backward; "+
				"let it work on a clone", i)})
	}
	return out
}

func (k *checkpoint) Forget() {}

// Backward runs f with a graph and runs backward through it.
func (k *checkpoint) Backward(c *torch.Ctx, a *Arrival) {
	c.SetGrad(true)
	c.ResumeDraws(k.seed, k.draws)

	// Inputs become gates, not leaves. A leaf would change the layout of its gradient, and so the
	// bits of later sums.
	in := a.inputs[:len(a.inputs)-len(k.shared)]
	mailboxes := make([]*torch.Tensor, len(in))
	for i, t := range in {
		if t != nil && t.RequiresGrad() {
			mailboxes[i] = Mailbox(c)
			in[i] = Gate(c, mailboxes[i], t)
		}
	}
	out := k.f(c, in)
	outputs, grads := k.roots(c, out, a.Grads)
	c.Release(0, slices.Concat(mailboxes, outputs, grads)...) // the graph holds the rest
	if len(outputs) > 0 {
		defer HideGrads(c, k.shared...)()
		c.Backward(outputs, grads, false)
		for i, t := range k.shared {
			a.InputGrads[len(in)+i] = c.GradOf(t)
		}
	}
	for i, m := range mailboxes {
		if m != nil {
			a.InputGrads[i] = c.GradOf(m)
		}
	}
}

// HideGrads removes the gradients of parameters. restore puts them back in place of newer ones.
func HideGrads(c *torch.Ctx, params ...*torch.Tensor) (restore func()) {
	before := make([]*torch.Tensor, len(params))
	for i, t := range params {
		before[i] = c.GradOf(t)
		t.SetGradOf(nil)
	}
	return func() {
		for i, t := range params {
			t.SetGradOf(before[i])
		}
	}
}

// roots returns the outputs that have a gradient, and their gradients.
func (k *checkpoint) roots(c *torch.Ctx, out, arrived []*torch.Tensor) (outputs, grads []*torch.Tensor) {
	fail := func(format string, args ...any) {
		panic(&torch.Error{Op: "checkpoint", Args: torch.Describe(out), Device: c.Device(),
			Message: fmt.Sprintf(format+"; it must compute the same again", args...)})
	}
	if len(out) != len(arrived) {
		fail("the function returned %d tensors, but %d when it first ran", len(out), len(arrived))
	}
	for i, grad := range arrived {
		if grad == nil || out[i] != nil && !out[i].RequiresGrad() {
			continue
		}
		if was, is := grad.String(), out[i].String(); was != is {
			fail("output %d was %v when the function first ran, and is %v", i, was, is)
		}
		outputs, grads = append(outputs, out[i]), append(grads, grad)
	}
	return outputs, grads
}
