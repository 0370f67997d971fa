package nn

import (
	"fmt"
	"slices"

	"penstock.example/internal/engine"
	"penstock.example/torch"
)

// Checkpointed returns l as a layer that keeps only its inputs in forward and computes the rest
// again in backward (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost"). Between
// forward and backward its part of the graph holds only the inputs. l has both ends of its skips.
//
// Names, parameters, skips and results are l's, to the bit. One order of addition differs: if a
// parameter is shared with other layers (Base.Share), or the layer around l uses a tensor elsewhere
// too, the gradient's terms from l are summed first. Only one backward at a time may go through
// shared parameters.
//
// The first run of l sees Ctx.Checkpointing, the second, inside of Backward, Ctx.Recomputing. Both
// draw the same random bits. Running statistics move in the first. If grad is off, or neither an
// input nor a parameter of l requires a gradient, l runs once, as it is. For a pipe l is one layer,
// even a Sequential. A stage that recomputes runs l three times: its recomputation checkpoints l
// again, with both flags set in the first of the two runs.
//
// Layers that declare InPlace (l, layers in l, layers after l) get copies of l's inputs. Anything
// else that overwrites an input before backward makes Backward fail. If l panics or ends its
// goroutine in the second run, Backward does the same, and Ctx.Path names the layer. After a
// failure in either run the buffers of l have the values from before that run.
func Checkpointed(l Layer) Layer {
	return checkpointed{l}
}

type checkpointed struct{ Layer }

func (l checkpointed) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	return onlyTensor(l, l.ForwardTuple(c, []*torch.Tensor{x}))
}

func (l checkpointed) ForwardTuple(c *Ctx, xs []*torch.Tensor) []*torch.Tensor {
	v := verifier{stash: map[SkipKey]*declaration{}}
	v.visit(0, c.Path(), l.node())
	routes, err := v.routes()
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
// only on these and on parameters, and keep none of them. Elements of xs and of the result may be
// of any type, nil, or the same tensor twice. The result belongs to c.
//
// Neither f nor a layer that it runs may stash or pop. Gradients are assumed to reach parameters
// in f.
func (c *Ctx) Checkpoint(f func(c *Ctx, xs []*torch.Tensor) []*torch.Tensor,
	xs ...*torch.Tensor) []*torch.Tensor {
	return c.checkpoint(nil, true, f, xs)
}

// checkpoint runs a part of a model with these skips once, or twice. trained says that it uses
// parameters that require gradients.
func (c *Ctx) checkpoint(skips []SkipRoute, trained bool,
	part func(c *Ctx, xs []*torch.Tensor) []*torch.Tensor, xs []*torch.Tensor) []*torch.Tensor {
	run := func(c *Ctx, xs []*torch.Tensor) []*torch.Tensor { // c has its own skips again, also after a panic
		around := c.Skips
		c.Skips = new(SkipStore).Begin(skips, 0, 1)
		c.Skips.guardStorage(xs)
		defer func() {
			c.Skips.Free()
			c.Skips = around
		}()
		return part(c, xs)
	}
	wantsGrad := func(x *torch.Tensor) bool { return x != nil && x.RequiresGrad() }
	if !c.Grad() || !trained && !slices.ContainsFunc(xs, wantsGrad) {
		return run(c, xs)
	}
	start := *c // of the second run
	start.path = slices.Clone(c.path)
	start.spans, start.Spans = nil, false
	start.Checkpointing, start.Recomputing = false, true

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
			first = run(c, spread(in, at))
			return slices.Clone(first)
		}
		n := start
		n.Ctx, n.path = t, slices.Clone(start.path)
		ended := false
		defer func() {
			if !ended {
				*c.failed = n.Path()
			}
		}()
		out := run(&n, spread(in, at))
		ended = true
		return out
	}, inputs, trained, c.sharedParams()...)
	if c.Skips != nil {
		c.Skips.guardStorage(inputs) // an output may be a view of one
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

// spread undoes engine.Distinct.
func spread(list []*torch.Tensor, at []int) []*torch.Tensor {
	out := make([]*torch.Tensor, len(at))
	for i, k := range at {
		out[i] = list[k]
	}
	return out
}
