package nn

import (
	"slices"

	"penstock/torch"
)

// border is what of the skips of a model crosses the border of a module in it. The skips that enter become inputs of what runs the module by itself, a checkpoint, and those that leave become outputs.
type border struct {
	in     []SkipKey        // one for each pop inside of what is stashed outside
	out    []SkipKey        // stashed inside and popped outside
	inside map[SkipKey]int  // stashed inside: how many pops inside
	absent []bool           // by in: nil was stashed
	leaves map[SkipKey]bool // out as a set
}

// borderOf finds the border of the module that b is the base of, in the model that c runs.
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

// store is for one run of the inside.
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

// give hands a run of the inside the skips that entered.
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
