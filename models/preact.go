package models

import (
	"penstock.example/nn"
	"penstock.example/torch"
)

// preActResNets has the residual network of 1001 layers for small images (He et al. 2016, "Identity
// Mappings in Deep Residual Networks", table 4) as in papers on rematerialisation (Beaumont et al.
// 2019, "Optimal checkpointing for heterogeneous chains"): four times as wide, and with a norm but
// no ReLU in a shortcut that changes the shape. Each block is one layer.
var preActResNets = []model{{
	Info: Info{
		Name: "resnet1001", Summary: "residual network for small images, 3 groups of depth pre-activated " +
			"bottlenecks (He et al. 2016), 4 times as wide",
		Kind: Image, Input: []int64{3, 32, 32},
		Defaults: Options{Classes: 10, Channels: 3, Size: 32, Width: 64, Depth: 111},
	},
	build: func(o Options) (*nn.Sequential, error) { return preActResNet(o), nil },
}}

// preActResNet is conv1, bn1, layer1.0 to layer3.(depth-1), bn2, avgpool, flatten, fc.
func preActResNet(o Options) *nn.Sequential {
	in := int64(16)
	s := nn.NewSequential().
		Add("conv1", convolution(int64(o.Channels), in, 3, 1)).
		Add("bn1", normReLU(in))
	in = addGroups(s, in, []int{o.Depth, o.Depth, o.Depth},
		func(in int64, g int, stride int64) (nn.Layer, int64) {
			width := int64(o.Width) << g
			return newPreActBottleneck(in, width, stride), bottleneckExpansion * width
		})
	return heInit(average(s.Add("bn2", normReLU(in)), in, o))
}

// bottleneckExpansion is the ratio of output to middle channels of a bottleneck.
const bottleneckExpansion = 4

// normReLU is a BatchNorm and a ReLU in one layer, with the parameter names of the norm.
func normReLU(channels int64) nn.Layer {
	return new(unit).add("", norm(channels)).add("relu", nn.NewReLUInPlace())
}

// preActBottleneck adds x, or a projection of x, and convolutions of the activated x: [N, in, H, W]
// to [N, 4 width, H/stride, W/stride] rounded up.
type preActBottleneck struct {
	unit
	downsample *nn.Sequential // nil where the shape does not change
}

// newPreActBottleneck is bn1, conv1, bn2, conv2, bn3, conv3 with a ReLU after each norm; conv2 has
// the stride.
func newPreActBottleneck(in, width, stride int64) *preActBottleneck {
	l, out := &preActBottleneck{}, bottleneckExpansion*width
	l.add("bn1", normReLU(in)).add("conv1", convolution(in, width, 1, 1)).
		add("bn2", normReLU(width)).add("conv2", convolution(width, width, 3, stride)).
		add("bn3", normReLU(width)).add("conv3", convolution(width, out, 1, 1))
	if in != out || stride != 1 {
		l.downsample = nn.NewSequential(norm(in), convolution(in, out, 1, stride))
		l.Child("downsample", l.downsample)
	}
	return l
}

func (l *preActBottleneck) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	mark := c.Mark()
	y := c.Run(x, l.layers...)
	if l.downsample != nil {
		x = c.Run(x, l.downsample)
	}
	c.Add_(y, x, 1)
	c.Release(mark, y)
	return y
}
