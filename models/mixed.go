package models

import (
	"strconv"

	"penstock.example/nn"
	"penstock.example/torch"
)

// mixed is the block of Inception networks: branches of convolutions read one input, and what they
// give is concatenated along the channels. It is one layer for a partition.
//
// A ReLU needs its result for its gradient, and so does what reads the block's output. With the
// ReLUs before the concatenation both would be kept, all channels twice, so the last ReLU of the
// branches comes after it. That changes no value. A branch that is a pool alone has no ReLU; then
// each of the others keeps its own.
type mixed struct {
	nn.Base
	branches []branch
	relu     bool // behind the concatenation
	out      int64
}

// branch is layers, then perhaps several in parallel on their output.
type branch struct{ path, ends []nn.Layer }

// arm describes a branch.
type arm struct {
	pool nn.Layer // the first layer, or nil
	path []filter
	ends []filter // side by side
}

// path is filters one after the other.
func path(filters ...filter) arm { return arm{path: filters} }

// pooled is a pool, and filters if any.
func pooled(pool nn.Layer, filters ...filter) arm { return arm{pool: pool, path: filters} }

// fork ends the arm in filters that each read its output.
func (a arm) fork(ends ...filter) arm {
	a.ends = ends
	return a
}

// newMixed makes a block for an input of in channels.
func newMixed(in int64, arms ...arm) *mixed {
	l := &mixed{relu: true}
	for _, a := range arms {
		l.relu = l.relu && len(a.path) > 0
	}
	for i, a := range arms {
		var b branch
		channels := in
		if a.pool != nil {
			l.Child("pool"+strconv.Itoa(i), a.pool)
			b.path = append(b.path, a.pool)
		}
		for k, f := range a.path {
			last := k == len(a.path)-1 && a.ends == nil
			b.path = append(b.path, l.filter(f, channels, !last || !l.relu))
			channels = f.out
		}
		if a.ends == nil {
			l.out += channels
		}
		for _, f := range a.ends {
			b.ends = append(b.ends, l.filter(f, channels, !l.relu))
			l.out += f.out
		}
		l.branches = append(l.branches, b)
	}
	return l
}

// filter declares a child.
func (l *mixed) filter(f filter, in int64, relu bool) nn.Layer {
	u := f.unit(in, relu)
	l.Child(f.name, u)
	return u
}

// Forward is aten::cat of the branches' outputs, and aten::relu_.
func (l *mixed) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	mark := c.Mark()
	var ys []*torch.Tensor
	for _, b := range l.branches {
		y := c.Run(x, b.path...)
		if b.ends == nil {
			ys = append(ys, y)
		}
		for _, end := range b.ends {
			ys = append(ys, c.Run(y, end))
		}
		c.Release(mark, ys...)
	}
	y := c.Cat(ys, 1)
	if l.relu {
		c.ReLU_(y)
	}
	c.Release(mark, y)
	return y
}
