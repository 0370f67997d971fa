package models

import (
	"penstock.example/nn"
	"penstock.example/torch"
)

// The operations in a cell of an AmoebaNet: [N, channels, H, W] to [N, channels, H/stride,
// W/stride]. Convolutions are ReLU, convolution, BatchNorm. A state has several readers, so the
// first ReLU makes a new tensor; those after a BatchNorm work in place.

func same(_, _ int64) nn.Layer { return nn.NewIdentity() }

func avgPool3x3(_, stride int64) nn.Layer {
	return nn.NewAvgPool2d(nn.Square(3), nn.PoolConfig{Stride: nn.Square(stride),
		Padding: nn.Square(1), ExcludePadding: true})
}

func maxPool2x2(_, stride int64) nn.Layer {
	return nn.NewMaxPool2d(nn.Square(2), nn.PoolConfig{Stride: nn.Square(stride)})
}

func conv1x1(channels, stride int64) nn.Layer { return conv1x1To(channels, channels, stride) }

func conv1x1To(in, out, stride int64) nn.Layer {
	return convChain(in, kernel{out, nn.Square(1), nn.Square(stride)})
}

// conv3x3 has a quarter of the channels in its middle, as has conv1x7x1.
func conv3x3(channels, stride int64) nn.Layer {
	one := nn.Square(1)
	return convChain(channels, kernel{channels / 4, one, one},
		kernel{channels / 4, nn.Square(3), nn.Square(stride)}, kernel{channels, one, one})
}

// conv1x7x1 is a 1x7 convolution and a 7x1.
func conv1x7x1(channels, stride int64) nn.Layer {
	one := nn.Square(1)
	return convChain(channels, kernel{channels / 4, one, one},
		kernel{channels / 4, nn.Pair{1, 7}, nn.Pair{1, stride}},
		kernel{channels / 4, nn.Pair{7, 1}, nn.Pair{stride, 1}}, kernel{channels, one, one})
}

// kernel is a convolution, padded so that stride 1 keeps the size.
type kernel struct {
	out          int64
	size, stride nn.Pair
}

func convChain(in int64, kernels ...kernel) nn.Layer {
	var layers []nn.Layer
	for i, k := range kernels {
		relu := nn.NewReLUInPlace()
		if i == 0 {
			relu = nn.NewReLU()
		}
		padding := nn.Pair{k.size[0] / 2, k.size[1] / 2}
		layers = append(layers, relu,
			nn.NewConv2d(in, k.out, k.size, nn.ConvConfig{Stride: k.stride, Padding: padding,
				NoBias: true}),
			nn.NewBatchNorm2d(k.out, nn.BatchNormConfig{}))
		in = k.out
	}
	return nn.NewSequential(layers...)
}

// factorizedReduce halves a state without losing every other pixel: half of the channels are a
// convolution of the pixels with even coordinates, the others of those with odd ones.
type factorizedReduce struct {
	nn.Base
	relu      nn.Layer
	even, odd nn.Layer
	norm      nn.Layer
}

func newFactorizedReduce(in, out int64) *factorizedReduce {
	l := &factorizedReduce{relu: nn.NewReLU(), even: convolution(in, out/2, 1, 2),
		odd: convolution(in, out-out/2, 1, 2), norm: nn.NewBatchNorm2d(out, nn.BatchNormConfig{})}
	l.Child("relu", l.relu)
	l.Child("conv1", l.even)
	l.Child("conv2", l.odd)
	l.Child("bn", l.norm)
	return l
}

// Forward takes images of even height and width.
func (l *factorizedReduce) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	mark := c.Mark()
	x = c.Run(x, l.relu)
	shifted := c.Narrow(c.Narrow(x, 2, 1, x.Size(2)-1), 3, 1, x.Size(3)-1)
	x = c.Cat([]*torch.Tensor{c.Run(x, l.even), c.Run(shifted, l.odd)}, 1)
	c.Release(mark, x)
	x = c.Run(x, l.norm)
	c.Release(mark, x)
	return x
}
