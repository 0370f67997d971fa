package nn

import "penstock.example/torch"

// residual is a block of a residual network (He et al. 2015, "Deep Residual Learning", figure 5):
// relu(main(x) + shortcut(x)), [N, in, H, W] to [N, out, H/stride, W/stride] rounded up. The
// shortcut is x itself, or a 1x1 convolution and BatchNorm where the shape changes. Children are
// named as torchvision's.
//
// The sum and every ReLU work in place on what the block itself has made: none of it is needed to
// compute gradients.
type residual struct {
	Base
	main       []Layer
	downsample *Sequential // nil when the shape does not change
}

// NewBasicBlock makes the block of ResNet-18 and ResNet-34: 3x3 convolutions conv1 (with the
// stride) and conv2, each with BatchNorm.
func NewBasicBlock(in, out, stride int64) Layer {
	r, relu := &residual{}, NewReLUInPlace()
	r.step("conv1", NewConv2d(in, out, Square(3), ConvConfig{Stride: Square(stride), Padding: Square(1),
		NoBias: true}))
	r.step("bn1", NewBatchNorm2d(out, BatchNormConfig{}))
	r.step("relu", relu)
	r.step("conv2", NewConv2d(out, out, Square(3), ConvConfig{Padding: Square(1), NoBias: true}))
	r.step("bn2", NewBatchNorm2d(out, BatchNormConfig{}))
	r.shortcut(in, out, stride)
	return r
}

// NewBottleneck makes the block of ResNet-50 and deeper: convolutions conv1 (1x1 to width), conv2
// (3x3 with the stride, as torchvision; the paper has it on conv1) and conv3 (1x1 to 4 width), each
// with BatchNorm.
func NewBottleneck(in, width, stride int64) Layer {
	r, relu, out := &residual{}, NewReLUInPlace(), 4*width
	r.step("conv1", NewConv2d(in, width, Square(1), ConvConfig{NoBias: true}))
	r.step("bn1", NewBatchNorm2d(width, BatchNormConfig{}))
	r.step("relu", relu)
	r.step("conv2", NewConv2d(width, width, Square(3),
		ConvConfig{Stride: Square(stride), Padding: Square(1), NoBias: true}))
	r.step("bn2", NewBatchNorm2d(width, BatchNormConfig{}))
	r.main = append(r.main, relu)
	r.step("conv3", NewConv2d(width, out, Square(1), ConvConfig{NoBias: true}))
	r.step("bn3", NewBatchNorm2d(out, BatchNormConfig{}))
	r.shortcut(in, out, stride)
	return r
}

func (r *residual) step(name string, l Layer) {
	r.Child(name, l)
	r.main = append(r.main, l)
}

func (r *residual) shortcut(in, out, stride int64) {
	if in == out && stride == 1 {
		return
	}
	r.downsample = NewSequential(NewConv2d(in, out, Square(1),
		ConvConfig{Stride: Square(stride), NoBias: true}), NewBatchNorm2d(out, BatchNormConfig{}))
	r.Child("downsample", r.downsample)
}

// Forward adds the shortcut to the main path.
func (r *residual) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	mark := c.Mark()
	y := c.Run(x, r.main...)
	if r.downsample != nil {
		x = c.Run(x, r.downsample)
	}
	c.ReLU_(c.Add_(y, x, 1))
	c.Release(mark, y)
	return y
}
