package models

import (
	"penstock.example/nn"
	"penstock.example/torch"
)

// A residual block (He et al. 2015, "Deep Residual Learning", figure 5) as a chain of layers, so
// that a partition may cut inside it: what nn.NewBasicBlock and nn.NewBottleneck compute, to the
// bit, under the same names of parameters; a bottleneck here may have groups and a middle of any
// width. Its input goes around the convolutions as the skip connection "identity".

const identity = "identity"

// basicBlock is identity, conv1, bn1, relu1, conv2, bn2, then downsample or add, and relu2.
func basicBlock(in, out, stride int64) *nn.Sequential {
	s := nn.NewSequential().Add(identity, nn.NewStash(identity))
	convolve(s, "1", in, out, 3, nn.Conv2dConfig{Stride: nn.Square(stride)})
	s.Add("relu1", nn.NewReLUInPlace())
	convolve(s, "2", out, out, 3, nn.Conv2dConfig{})
	return join(s, in, out, stride).Add("relu2", nn.NewReLUInPlace())
}

// bottleneck is identity, conv1, bn1, relu1, conv2, bn2, relu2, conv3, bn3, then downsample or add,
// and relu3; conv2, between middle channels, has the groups.
func bottleneck(in, middle, out, groups, stride int64) *nn.Sequential {
	s := nn.NewSequential().Add(identity, nn.NewStash(identity))
	convolve(s, "1", in, middle, 1, nn.Conv2dConfig{})
	s.Add("relu1", nn.NewReLUInPlace())
	convolve(s, "2", middle, middle, 3, nn.Conv2dConfig{Stride: nn.Square(stride), Groups: groups})
	s.Add("relu2", nn.NewReLUInPlace())
	convolve(s, "3", middle, out, 1, nn.Conv2dConfig{})
	return join(s, in, out, stride).Add("relu3", nn.NewReLUInPlace())
}

// convolve adds a convolution, padded so that stride 1 keeps the size, and its norm.
func convolve(s *nn.Sequential, number string, in, out, kernel int64, o nn.Conv2dConfig) {
	o.Padding, o.NoBias = nn.Square(kernel/2), true
	s.Add("conv"+number, nn.NewConv2d(in, out, nn.Square(kernel), o)).
		Add("bn"+number, nn.NewBatchNorm2d(out, nn.BatchNormConfig{}))
}

// join adds the layer where the two paths meet, and gives the block a namespace of its own. The
// layer is named downsample where it has parameters, so that they are torchvision's
// downsample.0.weight and so on.
func join(s *nn.Sequential, in, out, stride int64) *nn.Sequential {
	a := &add{}
	a.Pops(identity)
	if in == out && stride == 1 {
		s.Add("add", a)
	} else {
		a.project("0", convolution(in, out, 1, stride))
		a.project("1", nn.NewBatchNorm2d(out, nn.BatchNormConfig{}))
		s.Add("downsample", a)
	}
	s.Isolate(nn.NewNamespace())
	return s
}

// add adds the block's input, or a projection of it, to x in place: what comes before is a
// BatchNorm, which does not need its output.
type add struct {
	nn.Base
	projection []nn.Layer
}

func (a *add) project(name string, l nn.Layer) {
	a.Child(name, l)
	a.projection = append(a.projection, l)
}

// Forward returns x.
func (a *add) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	mark := c.Mark()
	c.Add_(x, c.Run(c.Pop(identity), a.projection...), 1)
	c.Release(mark)
	return x
}

// OverwritesInput is true.
func (a *add) OverwritesInput() bool { return true }
