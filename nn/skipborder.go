package nn

import (
	"slices"

	"penstock.example/torch"
)

// boundary lists the skips that cross the boundary of a module inside a model. Where the module
// runs by itself, as in a checkpoint, skips that enter become inputs and skips that leave become
// outputs.
type boundary struct {
	in     []SkipKey        // one for each pop inside of what is stashed outside
	out    []SkipKey        // stashed inside and popped outside
	inside map[SkipKey]int  // stashed inside: how many pops inside
	absent []bool           // by in: nil was stashed
	leaves map[SkipKey]bool // out as a set
}

// boundaryOf finds the boundary of the module with base b in the model that c runs.
func boundaryOf(c *Ctx, b *Base) *boundary {
	v := verifier{stash: map[SkipKey]*declaration{}}
	v.visit(0, "", b)
	d := &boundary{inside: map[SkipKey]int{}, leaves: map[SkipKey]bool{}}
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

// store makes the store for one run of the module.
func (d *boundary) store() *SkipStore {
	return &SkipStore{local: d.inside, leaves: d.leaves, held: map[SkipKey]*heldSkip{}}
}

// enter appends the skips that enter to the inputs.
func (d *boundary) enter(c *Ctx, xs []*torch.Tensor) []*torch.Tensor {
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

// give hands a run of the module the skips that entered.
func (d *boundary) give(c *Ctx, in []*torch.Tensor) {
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
func (d *boundary) take(c *Ctx, ys []*torch.Tensor) []*torch.Tensor {
	out := slices.Clone(ys)
	for _, k := range d.out {
		out = append(out, c.Adopt(c.skips.Take(c, k)))
	}
	return out
}

// leave stashes the skips that leave.
func (d *boundary) leave(c *Ctx, outputs []*torch.Tensor) []*torch.Tensor {
	ys := outputs[:len(outputs)-len(d.out)]
	for i, k := range d.out {
		c.skips.stash(c, k, outputs[len(ys)+i])
		c.skips.held[k].pops -= d.inside[k]
	}
	return ys
}
