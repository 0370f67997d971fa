package models

import (
	"strconv"

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
	return block(in, stride, residualStep{out, 3, stride, 1}, residualStep{out, 3, 1, 1})
}

// bottleneck is identity, conv1, bn1, relu1, conv2, bn2, relu2, conv3, bn3, then downsample or add,
// and relu3; conv2, between middle channels, has the groups.
func bottleneck(in, middle, out, groups, stride int64) *nn.Sequential {
	return block(in, stride, residualStep{middle, 1, 1, 1}, residualStep{middle, 3, stride, groups},
		residualStep{out, 1, 1, 1})
}

// residualStep is a convolution, padded so that stride 1 keeps the size, with a norm.
type residualStep struct{ out, kernel, stride, groups int64 }

// block has a namespace of its own. The layer where the two paths meet is named downsample where it has
// parameters, so that they are torchvision's downsample.0.weight and so on.
func block(in, stride int64, steps ...residualStep) *nn.Sequential {
	s := nn.NewSequential().Add(identity, nn.NewStash(identity))
	channels := in
	for i, step := range steps {
		number := strconv.Itoa(i + 1)
		s.Add("conv"+number, convolutionOf(channels, step.out, nn.Square(step.kernel), nn.Square(step.stride),
			step.groups)).
			Add("bn"+number, norm(step.out))
		if channels = step.out; i < len(steps)-1 {
			s.Add("relu"+number, nn.NewReLUInPlace())
		}
	}
	a, name := &add{}, "add"
	a.Pops(identity)
	if in != channels || stride != 1 {
		name = "downsample"
		a.project("0", convolution(in, channels, 1, stride))
		a.project("1", norm(channels))
	}
	s.Add(name, a).Add("relu"+strconv.Itoa(len(steps)), nn.NewReLUInPlace())
	s.Isolate(nn.NewNamespace())
	return s
}

// add adds the block's input, or a projection of it, to x in place: the BatchNorm before it
// does not need its output.
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
