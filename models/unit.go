package models

import (
	"penstock.example/nn"
	"penstock.example/torch"
)

// unit is a chain of layers that a partition takes as one layer, where a Sequential would be
// flattened.
type unit struct {
	nn.Base
	layers []nn.Layer
}

func (u *unit) add(name string, l nn.Layer) *unit {
	u.Child(name, l)
	u.layers = append(u.layers, l)
	return u
}

func convolution(in, out, size, stride int64) nn.Layer {
	return convolutionOf(in, out, nn.Square(size), nn.Square(stride))
}

// convolutionOf makes a convolution without a bias, padded so that stride 1 keeps the size of the
// image.
func convolutionOf(in, out int64, size, stride nn.Pair) nn.Layer {
	return nn.NewConv2d(in, out, size, nn.ConvConfig{Stride: stride,
		Padding: nn.Pair{size[0] / 2, size[1] / 2}, NoBias: true})
}

func norm(channels int64) nn.Layer { return nn.NewBatchNorm2d(channels, nn.BatchNormConfig{}) }

// average appends the average of the image, under a name, and a linear layer.
func (u *unit) average(name string, in, classes int64) *unit {
	return u.add(name, nn.NewAdaptiveAvgPool2d(nn.Square(1))).
		add("flatten", nn.NewFlatten(1, -1)).
		add("fc", nn.NewLinear(in, classes))
}

// average appends the average of the image and a linear layer.
func average(s *nn.Sequential, in int64, o Options) *nn.Sequential {
	return s.Add("avgpool", nn.NewAdaptiveAvgPool2d(nn.Square(1))).
		Add("flatten", nn.NewFlatten(1, -1)).
		Add("fc", nn.NewLinear(in, int64(o.Classes)))
}

func (u *unit) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor { return c.Run(x, u.layers...) }
