package models

import (
	"penstock.example/nn"
	"penstock.example/torch"
)

// The operations in a cell of an AmoebaNet: [N, channels, H, W] to [N, channels, H/stride,
// W/stride].

func same(_, _ int64) nn.Layer { return nn.NewIdentity() }

func avgPool3x3(_, stride int64) nn.Layer {
	return nn.NewAvgPool2d(nn.Square(3), nn.PoolConfig{Stride: nn.Square(stride),
		Padding: nn.Square(1), ExcludePadding: true})
}

func maxPool2x2(_, stride int64) nn.Layer {
	return nn.NewMaxPool2d(nn.Square(2), nn.PoolConfig{Stride: nn.Square(stride)})
}

var (
	conv1x1   = convOperation(nn.Square(1))
	conv3x3   = convOperation(nn.Square(1), nn.Square(3), nn.Square(1))
	conv1x7x1 = convOperation(nn.Square(1), nn.Pair{1, 7}, nn.Pair{7, 1}, nn.Square(1))
)

func convOperation(sizes ...nn.Pair) func(channels, stride int64) nn.Layer {
	return func(channels, stride int64) nn.Layer { return convChain(channels, channels, stride, sizes...) }
}

// convChain is ReLU, convolution and BatchNorm for each size, with out/4 channels between them. Of
// several convolutions only the ones larger than 1x1 have the stride. The first ReLU makes a new
// tensor, as other nodes read the state too; later ReLUs work in place.
func convChain(in, out, stride int64, sizes ...nn.Pair) nn.Layer {
	var layers []nn.Layer
	for i, size := range sizes {
		to, step, relu := out/4, nn.Square(1), nn.NewReLUInPlace()
		if i == 0 {
			relu = nn.NewReLU()
		}
		if i == len(sizes)-1 {
			to = out
		}
		for d := range size {
			if size[d] > 1 || len(sizes) == 1 {
				step[d] = stride
			}
		}
		layers = append(layers, relu, convolutionOf(in, to, size, step), norm(to))
		in = to
	}
	return nn.NewSequential(layers...)
}

// factorizedReduce halves the size of a state. Half of the channels are a convolution of the pixels
// with even coordinates, the other half of the pixels with odd coordinates.
type factorizedReduce struct {
	nn.Base
	relu, even, odd, norm nn.Layer
}

func newFactorizedReduce(in, out int64) *factorizedReduce {
	l := &factorizedReduce{relu: nn.NewReLU(), even: convolution(in, out/2, 1, 2),
		odd: convolution(in, out-out/2, 1, 2), norm: norm(out)}
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
