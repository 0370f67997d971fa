package models

import (
	"strconv"

	"penstock/nn"
	"penstock/torch"
)

// mixed is the block of Inception networks: branches of convolutions read one input, and what they give is concatenated along the channels. It is one layer for a partition.
//
// A ReLU needs its result for its gradient, and so does what reads the block's output. With the ReLUs in front of the concatenation both would be kept, all channels twice, so the last one of the
// branches comes behind it. That changes no value; but a branch that is a pool alone has none, and then each of the others has its own.
type mixed struct {
	nn.Base
	branches []branch
	relu     bool // behind the concatenation
	out      int64
}

// branch is layers, then several side by side on what those give, or none.
type branch struct{ path, ends []nn.Layer }

// arm describes a branch.
type arm struct {
	pool nn.Layer // the first layer, or nil
	path []filter
	ends []filter // side by side
}

func path(filters ...filter) arm { return arm{path: filters} }

func pooled(pool nn.Layer, filters ...filter) arm { return arm{pool: pool, path: filters} }

func (a arm) fork(ends ...filter) arm {
	a.ends = ends
	return a
}

// newMixed makes a block for so many channels.
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
	u := new(unit).add("conv", f.conv(in)).add("bn", f.norm())
	if relu {
		u.add("relu", nn.NewReLUInPlace())
	}
	l.Child(f.name, u)
	return u
}

// Forward is aten::cat of what the branches give, and aten::relu_.
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

// filter is a convolution without a bias, a norm and a ReLU: torchvision's BasicConv2d.
type filter struct {
	name     string // a dot in it is for torchvision's names
	out      int64
	size     nn.Pair
	stride   int64 // 0 is 1
	unpadded bool  // else padded so that stride 1 keeps the size of the image
}

// conv is a filter of stride 1 that keeps the size.
func conv(name string, out, height, width int64) filter {
	return filter{name: name, out: out, size: nn.Pair{height, width}}
}

// halve is a filter of 3x3 that halves the size, and leaves off what does not fill a window.
func halve(name string, out int64) filter {
	return filter{name: name, out: out, size: nn.Square(3), stride: 2, unpadded: true}
}

func (f filter) conv(in int64) nn.Layer {
	o := nn.Conv2dConfig{Stride: nn.Square(max(f.stride, 1)), NoBias: true}
	if !f.unpadded {
		o.Padding = nn.Pair{f.size[0] / 2, f.size[1] / 2}
	}
	return nn.NewConv2d(in, f.out, f.size, o)
}

func (f filter) norm() nn.Layer { return nn.NewBatchNorm2d(f.out, nn.BatchNormConfig{Eps: 0.001}) }

// stem grows a Sequential of filters, open for a partition, and other layers.
type stem struct {
	*nn.Sequential
	channels int64
}

func (s *stem) filters(filters ...filter) {
	for _, f := range filters {
		s.Add(f.name, nn.NewSequential().Add("conv", f.conv(s.channels)).Add("bn", f.norm()).Add("relu", nn.NewReLUInPlace()))
		s.channels = f.out
	}
}

func (s *stem) mixed(name string, arms ...arm) {
	l := newMixed(s.channels, arms...)
	s.Add(name, l)
	s.channels = l.out
}
