package models

import (
	"strconv"

	"penstock.example/nn"
	"penstock.example/torch"
)

// mixed is the block of Inception networks: branches of convolutions read one input, and their
// outputs are concatenated along the channels. It is one layer for a partition.
//
// One ReLU follows the concatenation in place of the last ReLU of each branch. Values are the same,
// and the graph keeps all channels once: as the block's output, but not as the branches' outputs
// too. If a branch ends in a pool, which has no ReLU, the other branches keep their ReLUs.
type mixed struct {
	nn.Base
	branches []branch
	relu     bool // after the concatenation
	out      int64
}

// branch is a path of layers. If it has ends, each of them reads the output of the path.
type branch struct{ path, ends []nn.Layer }

func pool(l nn.Layer) filter { return filter{pool: l} }

func asEnd(f filter) filter {
	f.isEnd = true
	return f
}

// newMixed makes a block of branches for an input of in channels. In a branch, filters with isEnd
// are ends and the others are the path.
func newMixed(in int64, branches [][]filter) *mixed {
	l := &mixed{relu: true}
	for _, filters := range branches {
		l.relu = l.relu && filters[len(filters)-1].pool == nil
	}
	for i, filters := range branches {
		var b branch
		channels := in
		for k, f := range filters {
			final := k == len(filters)-1 || f.isEnd
			layer, name, out := f.pool, "pool"+strconv.Itoa(i), channels
			if layer == nil {
				layer, name, out = f.unit(channels, !final || !l.relu), f.name, f.out
			}
			l.Child(name, layer)
			if f.isEnd {
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
