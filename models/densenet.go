package models

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"penstock.example/nn"
	"penstock.example/torch"
)

// denseNets are the densely connected networks for ImageNet (Huang et al. 2017, "Densely Connected
// Convolutional Networks", table 1) with torchvision's names and parameters.
var denseNets = []model{
	denseNet("densenet121", 32, 6, 12, 24, 16),
	denseNet("densenet161", 48, 6, 12, 36, 24),
	denseNet("densenet169", 32, 6, 12, 32, 32),
	denseNet("densenet201", 32, 6, 12, 48, 32),
}

func denseNet(name string, growth int, blocks ...int) model {
	m := imageNet(name, fmt.Sprintf("densely connected network for ImageNet, blocks of %v layers (Huang "+
		"et al. 2017, table 1)", blocks),
		func(o Options) (*nn.Sequential, error) { return buildDenseNet(blocks, o), nil })
	m.Defaults.Width, m.aliases, m.dropout, m.least = growth, []alias{{"growth", "Width"}}, true, 29
	return m
}

// buildDenseNet is features.conv0, norm0, relu0 and pool0, blocks of dense layers with transitions
// (norm, relu, conv, pool) between them, then features.norm5, relu, avgpool, flatten, classifier.
func buildDenseNet(blocks []int, o Options) *nn.Sequential {
	growth := int64(o.Width)
	channels := 2 * growth
	features := nn.NewSequential().
		Add("conv0", convolution(int64(o.Channels), channels, 7, 2)).
		Add("norm0", norm(channels)).
		Add("relu0", nn.NewReLUInPlace()).
		Add("pool0", nn.NewMaxPool2d(nn.Square(3),
			nn.PoolConfig{Stride: nn.Square(2), Padding: nn.Square(1)}))
	for i, n := range blocks {
		block := nn.NewSequential()
		for k := range n {
			block.Add("denselayer"+strconv.Itoa(k+1), newDenseLayer(channels, growth, o.Dropout))
			channels += growth
		}
		features.Add("denseblock"+strconv.Itoa(i+1), block)
		if i == len(blocks)-1 {
			break
		}
		features.Add("transition"+strconv.Itoa(i+1), nn.NewSequential().
			Add("norm", norm(channels)).
			Add("relu", nn.NewReLUInPlace()).
			Add("conv", convolution(channels, channels/2, 1, 1)).
			Add("pool", nn.NewAvgPool2d(nn.Square(2), nn.PoolConfig{})))
		channels /= 2
	}
	features.Add("norm5", norm(channels))
	return denseInit(nn.NewSequential().
		Add("features", features).
		Add("relu", nn.NewReLUInPlace()).
		Add("avgpool", nn.NewAdaptiveAvgPool2d(nn.Square(1))).
		Add("flatten", nn.NewFlatten(1, -1)).
		Add("classifier", nn.NewLinear(channels, int64(o.Classes))))
}

// denseInit sets torchvision's initialisers: He et al. 2015 ("Delving Deep into Rectifiers", eq.
// 10, by fan-in) for convolutions, zero for the classifier's bias.
func denseInit(s *nn.Sequential) *nn.Sequential {
	for _, p := range nn.Params(s) {
		switch shape := p.Shape(); {
		case len(shape) == 4:
			p.SetInit(nn.Normal(math.Sqrt(2 / float64(p.Numel()/shape[0]))))
		case strings.HasSuffix(p.Name, "bias"):
			p.SetInit(nn.Zeros)
		}
	}
	return s
}

// denseLayer appends channels: [N, in, H, W] to [N, in + growth, H, W]. All channels of a block so
// far pass from layer to layer as one tensor, so that a partition may cut between any two. This
// costs no memory, as the first norm of each layer saves them as one tensor anyway.
type denseLayer struct{ unit }

// newDenseLayer is norm1, relu1, conv1 (1x1), norm2, relu2, conv2 (3x3), and with dropout drop.
func newDenseLayer(in, growth int64, dropout float64) *denseLayer {
	l, middle := &denseLayer{}, 4*growth
	l.add("norm1", norm(in)).
		add("relu1", nn.NewReLUInPlace()).
		add("conv1", convolution(in, middle, 1, 1)).
		add("norm2", norm(middle)).
		add("relu2", nn.NewReLUInPlace()).
		add("conv2", convolution(middle, growth, 3, 1))
	if dropout > 0 {
		l.add("drop", nn.NewDropout(dropout))
	}
	return l
}

func (l *denseLayer) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	mark := c.Mark()
	y := c.Cat([]*torch.Tensor{x, c.Run(x, l.layers...)}, 1)
	c.Release(mark, y)
	return y
}
