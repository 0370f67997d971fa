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

// pool is a pool in a branch.
func pool(l nn.Layer) filter { return filter{pool: l} }

func beside(f filter) filter {
	f.beside = true
	return f
}

// newMixed makes a block for an input of in channels. A branch is filters one after the other, and at
// its end perhaps some beside each other.
func newMixed(in int64, branches [][]filter) *mixed {
	l := &mixed{relu: true}
	for _, filters := range branches {
		l.relu = l.relu && filters[len(filters)-1].pool == nil
	}
	for i, filters := range branches {
		var b branch
		channels := in
		for k, f := range filters {
			final := k == len(filters)-1 || f.beside
			layer, name, out := f.pool, "pool"+strconv.Itoa(i), channels
			if layer == nil {
				layer, name, out = f.unit(channels, !final || !l.relu), f.name, f.out
			}
			l.Child(name, layer)
			if f.beside {
				b.ends = append(b.ends, layer)
			} else {
				b.path, channels = append(b.path, layer), out
			}
			if final {
				l.out += out
			}
		}
		l.branches = append(l.branches, b)
	}
	return l
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
