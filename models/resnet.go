package models

import (
	"fmt"
	"strconv"

	"penstock/nn"
)

// resNets are the residual networks for ImageNet (He et al. 2015, "Deep Residual Learning", table 1) with torchvision's names and parameters. They end in an
// average, so images may be small: 32x32 is 1x1 in the last group. Blocks are chains of layers, which a balance may cut anywhere: resnet101 has 370.
var resNets = []model{
	resNet(18, false, 2, 2, 2, 2),
	resNet(34, false, 3, 4, 6, 3),
	resNet(50, true, 3, 4, 6, 3),
	resNet(101, true, 3, 4, 23, 3),
	resNet(152, true, 3, 8, 36, 3),
}

func resNet(layers int, deep bool, blocks ...int) model {
	kind := "basic blocks"
	if deep {
		kind = "bottlenecks"
	}
	return model{
		Info: Info{
			Name: fmt.Sprintf("resnet%d", layers), Summary: fmt.Sprintf("residual network for ImageNet, groups of %v %s (He et al. 2015, table 1)", blocks, kind),
			Kind: Image, Input: []int64{3, 224, 224},
			Defaults: Options{Classes: 1000, Channels: 3, Size: 224},
		},
		build: func(o Options) (*nn.Sequential, error) { return buildResNet(deep, blocks, o), nil },
	}
}

func buildResNet(deep bool, blocks []int, o Options) *nn.Sequential {
	s := nn.NewSequential().
		Add("conv1", nn.NewConv2d(int64(o.Channels), 64, nn.Square(7), nn.Conv2dConfig{Stride: nn.Square(2), Padding: nn.Square(3), NoBias: true})).
		Add("bn1", nn.NewBatchNorm2d(64, nn.BatchNormConfig{})).
		Add("relu", nn.NewReLU()).
		Add("maxpool", nn.NewMaxPool2d(nn.Square(3), nn.MaxPool2dConfig{Stride: nn.Square(2), Padding: nn.Square(1)}))
	in := int64(64)
	for g, n := range blocks {
		width, group := int64(64)<<g, nn.NewSequential()
		for i := range n {
			stride := int64(1)
			if g > 0 && i == 0 {
				stride = 2
			}
			if deep {
				group.Add(strconv.Itoa(i), bottleneck(in, width, stride))
				in = nn.BottleneckExpansion * width
			} else {
				group.Add(strconv.Itoa(i), basicBlock(in, width, stride))
				in = width
			}
		}
		s.Add("layer"+strconv.Itoa(g+1), group)
	}
	s.Add("avgpool", nn.NewAdaptiveAvgPool2d(nn.Square(1))).
		Add("flatten", nn.NewFlatten(1, -1)).
		Add("fc", nn.NewLinear(in, int64(o.Classes)))
	return heInit(s)
}
