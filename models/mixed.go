package models

import (
	"strconv"

	"penstock.example/nn"
	"penstock.example/torch"
)

// mixed is the block of Inception networks: branches of convolutions read one input, and their
// outputs are concatenated along the channels. It is one layer for a partition.
//
// Backward needs the results of the branches' last ReLUs, and the block's output for the next
// layer. If the ReLUs came before the concatenation, all channels would be kept twice, so one ReLU
// follows it instead. Values do not change. If a branch ends in a pool, which has no ReLU, the
// other branches keep their ReLUs.
type mixed struct {
	nn.Base
	branches []branch
	relu     bool // after the concatenation
	out      int64
}

// branch is a path of layers, whose output goes through each of ends, if there are any.
type branch struct{ path, ends []nn.Layer }

func pool(l nn.Layer) filter { return filter{pool: l} }

func beside(f filter) filter {
	f.beside = true
	return f
}

// newMixed makes a block of branches for an input of in channels. The filters of a branch run one
// after the other, those with beside at its end in parallel.
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
