package nn

import (
	"slices"

	"penstock/torch"
)

// Checkpointed is l, run so that it keeps only its inputs in forward and computes the rest again in backward (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost"). It
// needs no pipe; in a pipe it is a part of a stage that recomputes by itself, and one that a recomputing stage runs as it is. Names, parameters and results are those of l. To a pipe it
// is one layer, also where l is a Sequential.
//
// In the first forward a layer sees Ctx.Checkpointing, in the second Ctx.Recomputing; both draw the same random bits, and running statistics move once. In evaluation, or without gradients,
// nothing is recomputed. Skips may lead into l and out of it.
func Checkpointed(l Layer) Layer { return checkpointed{l} }

type checkpointed struct{ Layer }

func (l checkpointed) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	return single(l, l.ForwardTuple(c, []*torch.Tensor{x}))
}

func (l checkpointed) ForwardTuple(c *Ctx, xs []*torch.Tensor) []*torch.Tensor {
	b := borderOf(c, l.node())
	inputs := b.enter(c, xs)
	outputs := c.checkpoint(func(c *Ctx, in []*torch.Tensor) []*torch.Tensor {
		b.give(c, in[len(xs):])
		in = slices.Clone(in[:len(xs)])
		if overwrites(l.Layer) {
			for i := range in {
				in[i] = c.Clone(in[i])
			}
		}
		return b.take(c, c.apply(l.Layer, in))
	}, b.store, inputs, len(Params(l)) > 0)
	return b.leave(c, outputs)
}

// OverwritesInput is false: what a recomputation needs must not be overwritten, so the wrapped layer works on a copy.
func (l checkpointed) OverwritesInput() bool { return false }

// Checkpoint runs f on xs as Checkpointed does a layer: f is called again in backward, with tensors of the same values and a context of its own, and must depend on nothing else.
// It may use parameters. Tensors of any type go in and come out, and f may give nil for what is absent. It must not stash or pop.
func (c *Ctx) Checkpoint(f func(c *Ctx, xs []*torch.Tensor) []*torch.Tensor, xs ...*torch.Tensor) []*torch.Tensor {
	return c.checkpoint(f, func() *SkipStore { return &SkipStore{} }, xs, true)
}

// checkpoint runs f with a store of skips of its own in each of its runs.
func (c *Ctx) checkpoint(f func(*Ctx, []*torch.Tensor) []*torch.Tensor, store func() *SkipStore, xs []*torch.Tensor, trained bool) []*torch.Tensor {
	if !c.Grad() || !trained && !slices.ContainsFunc(xs, (*torch.Tensor).RequiresGrad) {
		return c.within(store(), c.Checkpointing, func() []*torch.Tensor { return f(c, xs) })
	}
	// What the second run starts from.
	again := *c
	again.path = slices.Clone(c.path)
	again.stashed, again.popped = nil, nil
	again.spans, again.trace, again.deferred = nil, false, nil
	again.Recomputing, again.Checkpointing = true, false
	first := true
	return c.Ctx.Checkpoint(func(t *torch.Ctx, in []*torch.Tensor) []*torch.Tensor {
		if first {
			first = false
			return c.within(store(), true, func() []*torch.Tensor { return f(c, in) })
		}
		n := again
		n.Ctx, n.path = t, slices.Clone(again.path)
		return n.within(store(), false, func() []*torch.Tensor { return f(&n, in) })
	}, xs, trained)
}

// within runs f with other skips. Also when f panics the context has its own again afterwards.
func (c *Ctx) within(skips *SkipStore, checkpointing bool, f func() []*torch.Tensor) []*torch.Tensor {
	outer, was, trace := c.skips, c.Checkpointing, c.trace
	c.skips, c.Checkpointing, c.trace = skips, checkpointing, c.trace && !checkpointing
	defer func() {
		skips.Free()
		c.skips, c.Checkpointing, c.trace = outer, was, trace
	}()
	return f()
}

// border is what of the skips of a model crosses the border of a module in it: the skips that enter are inputs of the checkpoint, those that leave are outputs.
type border struct {
	in     []SkipKey // by pop inside
	out    []SkipKey
	inside map[SkipKey]int  // stashed inside: how many pops inside
	absent []bool           // by in
	leaves map[SkipKey]bool // out as a set
}

func borderOf(c *Ctx, b *Base) *border {
	v := verifier{stash: map[SkipKey]*declaration{}}
	v.visit(0, "", b)
	d := &border{inside: map[SkipKey]int{}, leaves: map[SkipKey]bool{}}
	for _, s := range v.stashes {
		d.inside[s.key] = 0
	}
	for _, p := range v.pops {
		if _, ok := d.inside[p.key]; ok {
			d.inside[p.key]++
		} else {
			d.in = append(d.in, p.key)
		}
	}
	for _, s := range v.stashes {
		if c.skips != nil && (c.skips.local[s.key] > d.inside[s.key] || c.skips.leaves[s.key]) {
			d.out = append(d.out, s.key)
			d.leaves[s.key] = true
		}
	}
	return d
}

// store is that of one run of the inside.
func (d *border) store() *SkipStore {
	return &SkipStore{local: d.inside, leaves: d.leaves, held: map[SkipKey]*heldSkip{}}
}

// enter appends the skips that enter to the inputs.
func (d *border) enter(c *Ctx, xs []*torch.Tensor) []*torch.Tensor {
	out := slices.Clone(xs)
	for _, k := range d.in {
		if c.skips == nil {
			c.refuse("pop", k, "has not been stashed; run the layer as part of an nn.Sequential")
		}
		t := c.skips.pop(c, k)
		d.absent = append(d.absent, t == nil)
		if t != nil {
			out = append(out, t)
		}
	}
	return out
}

func (d *border) give(c *Ctx, in []*torch.Tensor) {
	for i, k := range d.in {
		if d.absent[i] {
			c.skips.Give(k, nil)
			continue
		}
		c.skips.Give(k, c.Keep(c.Share(in[0])))
		in = in[1:]
	}
}

// take appends the skips that leave to the outputs.
func (d *border) take(c *Ctx, ys []*torch.Tensor) []*torch.Tensor {
	out := slices.Clone(ys)
	for _, k := range d.out {
		out = append(out, c.Adopt(c.skips.Take(c, k)))
	}
	return out
}

// leave stashes the skips that leave.
func (d *border) leave(c *Ctx, outputs []*torch.Tensor) []*torch.Tensor {
	ys := outputs[:len(outputs)-len(d.out)]
	for i, k := range d.out {
		c.skips.stash(c, k, outputs[len(ys)+i])
		c.skips.held[k].pops -= d.inside[k]
	}
	return ys
}
