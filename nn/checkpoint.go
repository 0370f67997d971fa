package nn

import (
	"fmt"
	"slices"

	"penstock.example/internal/engine"
	"penstock.example/torch"
)

// Checkpointed returns l as a layer that keeps only its inputs in forward and computes the rest
// again in backward (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost"). A skip of
// l must be stashed and popped inside of l. For a pipe l is one layer, even a Sequential.
//
// Names and parameters are l's. Results and gradients have the same bits as without Checkpointed,
// with one exception: a parameter (Base.Share) or an input that other layers use too. Its gradient
// sums the terms from l first. Only one backward at a time may go through shared parameters.
//
// Ctx.Checkpointing is set in the first run of l, Ctx.Recomputing in the second, inside of
// Backward. Both runs draw the same random numbers, and only the first moves running statistics. l
// runs only once, with neither flag, if grad is off or if neither an input nor a parameter of l
// requires a gradient. If a pipe recomputes the stage of l, l runs three times. Both flags are set
// in the second of these runs, which is the stage's recomputation.
//
// A layer in or after l that declares InPlace gets a copy where it would overwrite an input of l.
// Backward fails if anything else overwrites an input. If l panics or ends its goroutine in the
// second run, Backward does the same, and Ctx.Path names the layer. A run that fails restores the
// buffers of l.
func Checkpointed(l Layer) Layer { return checkpointed{l} }

type checkpointed struct{ Layer }

func (l checkpointed) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	return onlyTensor(l, l.ForwardTuple(c, []*torch.Tensor{x}))
}

func (l checkpointed) ForwardTuple(c *Ctx, xs []*torch.Tensor) []*torch.Tensor {
	routes, err := skipRoutes(NamedLayer{c.Path(), l})
	if err != nil {
		panic(&torch.Error{Op: "Forward", Args: torch.Describe(xs), Device: c.Device(),
			Err: fmt.Errorf("a checkpointed layer has both ends of its skip connections: %w", err)})
	}
	return c.checkpoint(routes, len(Params(l)) > 0, func(c *Ctx, xs []*torch.Tensor) (ys []*torch.Tensor) {
		OrRestore(l, func() { ys = c.apply(l.Layer, c.Skips.copyIfNeeded(c, l.Layer, xs)) })
		return ys
	}, xs)
}

// Checkpoint runs f on xs as Checkpointed runs a layer: now without a graph, and again with one
// inside of Backward. Each run gets its own context and tensors of the same values. f must depend
// only on these and on parameters, and keep none of them. It is treated as using a parameter that
// requires a gradient. Elements of xs and of the result may be of any type, nil, or the same tensor
// twice. The result belongs to c. Neither f nor a layer that f runs may stash or pop.
func (c *Ctx) Checkpoint(f func(c *Ctx, xs []*torch.Tensor) []*torch.Tensor,
	xs ...*torch.Tensor) []*torch.Tensor {
	return c.checkpoint(nil, true, f, xs)
}

// checkpoint runs a part of a model that has these skips. trained reports whether the part uses
// parameters that require gradients.
func (c *Ctx) checkpoint(skips []SkipRoute, trained bool,
	part func(c *Ctx, xs []*torch.Tensor) []*torch.Tensor, xs []*torch.Tensor) []*torch.Tensor {
	run := func(c *Ctx, xs []*torch.Tensor) []*torch.Tensor {
		around := c.Skips
		c.Skips = new(SkipStore).Begin(skips, 0, 1)
		c.Skips.Guard(xs)
		defer func() { // also after a panic
			c.Skips.Free()
			c.Skips = around
		}()
		return part(c, xs)
	}
	wantsGrad := func(x *torch.Tensor) bool { return x != nil && x.RequiresGrad() }
	if !c.Grad() || !trained && !slices.ContainsFunc(xs, wantsGrad) {
		return run(c, xs)
	}
	second := c.Fork(c.Ctx, Config{Recomputing: true}) // the state of the second run
	second.Checkpointing = false

	// A repeated input is passed once, so that the gradients of its uses are summed in one order.
	// The same holds for outputs.
	inputs, at := engine.Distinct(xs)
	var first []*torch.Tensor // result of the first run
	ran := false
	ys := engine.Checkpoint(c.Ctx, func(t *torch.Ctx, in []*torch.Tensor) []*torch.Tensor {
		if !ran {
			ran = true
			defer func(was bool) { c.Checkpointing = was }(c.Checkpointing)
			c.Checkpointing = true
			first = run(c, elements(in, at))
			return slices.Clone(first)
		}
		n := second.Fork(t, Config{})
		ended := false
		defer func() {
			if !ended {
				*c.failed = n.Path()
			}
		}()
		out := run(n, elements(in, at))
		ended = true
		return out
	}, inputs, trained, c.sharedParams()...)
	if c.Skips != nil {
		c.Skips.Guard(inputs) // an output may be a view of an input
	}
	for i, y := range first {
		if k := slices.Index(first, y); k < i {
			ys[i].Free()
			ys[i] = ys[k]
		}
	}
	return ys
}

// sharedParams lists the trainable parameters of the running module that other modules use too.
func (c *Ctx) sharedParams() (out []*torch.Tensor) {
	if c.running == nil {
		return nil
	}
	for _, p := range Shared(c.running) {
		if t := p.Tensor(); t.RequiresGrad() && !slices.Contains(out, t) {
			out = append(out, t)
		}
	}
	return out
}

func elements(list []*torch.Tensor, at []int) []*torch.Tensor {
	out := make([]*torch.Tensor, len(at))
	for i, k := range at {
		out[i] = list[k]
	}
	return out
}
