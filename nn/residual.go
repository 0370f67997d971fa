package nn

import (
	"strconv"

	"penstock.example/torch"
)

// NewBasicBlock makes the layers of a block of ResNet-18 and ResNet-34 (He et al. 2015, "Deep
// Residual Learning", figure 5), with torchvision's parameter names:
//
//	y = relu2(bn2(conv2(relu1(bn1(conv1(x))))) + x)
//
// Both convolutions are 3x3; conv1 has the stride. x goes around them as a skip connection, in a
// namespace of the block's own. Where the shape changes, a 1x1 convolution and a BatchNorm,
// downsample.0 and downsample.1, are applied to x. The sum and every ReLU work in place.
//
// A partition may cut between any two layers of the block. If the block s is to be one layer, use
// Tuple(s, s.ForwardTuple).
func NewBasicBlock(in, out, stride int64) *Sequential {
	return newResidual(in, stride, residualStep{out, 3, stride, 1}, residualStep{out, 3, 1, 1})
}

// NewBottleneck makes the layers of a block of ResNet-50 and deeper networks, with the skip
// connection of NewBasicBlock: conv1 is 1x1 to width channels, conv2 3x3 in groups with the stride,
// conv3 1x1 to out channels. The stride is on conv2 as in torchvision; the paper has it on conv1.
func NewBottleneck(in, width, out, groups, stride int64) *Sequential {
	return newResidual(in, stride, residualStep{width, 1, 1, 1}, residualStep{width, 3, stride, groups},
		residualStep{out, 1, 1, 1})
}

// residualStep is a convolution, padded so that stride 1 keeps the size, with a BatchNorm.
type residualStep struct{ out, kernel, stride, groups int64 }

func newResidual(in, stride int64, steps ...residualStep) *Sequential {
	const skip = "identity"
	s := NewSequential().Add(skip, NewStash(skip))
	convolve := func(s *Sequential, conv, bn string, in int64, step residualStep) {
		s.Add(conv, NewConv2d(in, step.out, Square(step.kernel), ConvConfig{Stride: Square(step.stride),
			Padding: Square(step.kernel / 2), Groups: step.groups, NoBias: true})).
			Add(bn, NewBatchNorm2d(step.out, BatchNormConfig{}))
	}
	channels := in
	for i, step := range steps {
		number := strconv.Itoa(i + 1)
		if i > 0 {
			s.Add("relu"+strconv.Itoa(i), NewReLUInPlace())
		}
		convolve(s, "conv"+number, "bn"+number, channels, step)
		channels = step.out
	}
	sum, name := newAddSkip(skip), "add"
	if in != channels || stride != 1 {
		name, sum.projection = "downsample", NewSequential()
		convolve(sum.projection, "0", "1", in, residualStep{channels, 1, stride, 1})
		sum.Child("", sum.projection)
	}
	s.Add(name, sum).Add("relu"+strconv.Itoa(len(steps)), NewReLUInPlace())
	s.Isolate(NewNamespace())
	return s
}

// addSkip adds a skip connection, or its projection, to its input in place.
type addSkip struct {
	Base
	skip       string
	projection *Sequential // nil adds the skip itself
}

func newAddSkip(skip string) *addSkip {
	a := &addSkip{skip: skip}
	a.Pops(skip)
	return a
}

// Forward returns x. Under autocast x may be bfloat16 where the skip is float32: their sum is a new
// float32 tensor.
func (a *addSkip) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	mark := c.Mark()
	skip := c.Pop(a.skip)
	if a.projection != nil {
		skip = c.Run(skip, a.projection)
	}
	if x.DType() == skip.DType() {
		c.Add_(x, skip, 1)
	} else {
		x = c.Add(skip, x)
	}
	c.Release(mark, x)
	return x
}

func (a *addSkip) OverwritesInput() bool { return true }

// AddResidual appends the layers of x + path(x) to s and returns s: "skip"+suffix, the path, and
// "add"+suffix. x goes around the path as a skip connection in a namespace of its own. A partition
// may cut between any two layers, and a plan of recomputation may keep the tensor between them. The
// sum overwrites the output of path; see InPlace.
func (s *Sequential) AddResidual(suffix string, path ...NamedLayer) *Sequential {
	skip, space := "skip"+suffix, NewNamespace()
	stash, sum := NewStash(skip), newAddSkip(skip)
	stash.node().Isolate(space)
	sum.Isolate(space)
	s.Add(skip, stash)
	for _, l := range path {
		s.Add(l.Name, l.Layer)
	}
	return s.Add("add"+suffix, sum)
}
