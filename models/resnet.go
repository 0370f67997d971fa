package models

import (
	"fmt"
	"strconv"

	"penstock.example/nn"
)

// resNets are the residual networks for ImageNet with torchvision's names and parameters: He et al.
// 2015 ("Deep Residual Learning", table 1), the 200 layers of He et al. 2016 ("Identity Mappings",
// section 4) with the blocks of 2015, ResNeXt (Xie et al. 2017, "Aggregated Residual
// Transformations"), and wide networks (Zagoruyko and Komodakis 2016). A balance may cut inside
// blocks.
var resNets = []model{
	resNet("resnet18", "", "He et al. 2015, table 1", resNetDesign{basic: true}, 2, 2, 2, 2),
	resNet("resnet34", "", "He et al. 2015, table 1", resNetDesign{basic: true}, 3, 4, 6, 3),
	resNet("resnet50", "", "He et al. 2015, table 1", resNetDesign{}, 3, 4, 6, 3),
	resNet("resnet101", "", "He et al. 2015, table 1", resNetDesign{}, 3, 4, 23, 3),
	resNet("resnet152", "", "He et al. 2015, table 1", resNetDesign{}, 3, 8, 36, 3),
	resNet("resnet200", "", "He et al. 2016", resNetDesign{}, 3, 24, 36, 3),
	resNet("resnext50_32x4d", "resnext50", groupSource, resNetDesign{groups: 32, width: 4}, 3, 4, 6, 3),
	resNet("resnext101_32x8d", "resnext101", groupSource, resNetDesign{groups: 32, width: 8}, 3, 4, 23, 3),
	resNet("wide_resnet50_2", "wide_resnet50", wideSource, resNetDesign{width: 128}, 3, 4, 6, 3),
	resNet("wide_resnet101_2", "wide_resnet101", wideSource, resNetDesign{width: 128}, 3, 4, 23, 3),
}

const groupSource, wideSource = "Xie et al. 2017", "Zagoruyko and Komodakis 2016"

// resNetDesign describes the blocks of a residual network.
type resNetDesign struct {
	basic  bool  // basic blocks, else bottlenecks
	groups int64 // of the 3x3 convolutions of bottlenecks; 0 is 1
	width  int64 // channels of such a group in layer1; 0 is 64
}

func resNet(name, also, source string, d resNetDesign, blocks ...int) model {
	kind, middle := "bottlenecks", ""
	if d.basic {
		kind = "basic blocks"
	}
	if d.groups = max(d.groups, 1); d.groups > 1 {
		middle = fmt.Sprintf(", %d x %d channels in their middle", d.groups, d.width)
	} else if d.width > 0 {
		middle = fmt.Sprintf(", %d channels in their middle", d.width)
	} else {
		d.width = 64
	}
	m := imageNet(name, fmt.Sprintf("residual network for ImageNet, groups of %v %s%s (%s)", blocks, kind,
		middle, source),
		func(o Options) (*nn.Sequential, error) { return buildResNet(d, blocks, o), nil })
	m.also = also
	return m
}

func buildResNet(d resNetDesign, blocks []int, o Options) *nn.Sequential {
	s := nn.NewSequential().
		Add("conv1", convolution(int64(o.Channels), 64, 7, 2)).
		Add("bn1", norm(64)).
		Add("relu", nn.NewReLU()).
		Add("maxpool", nn.NewMaxPool2d(nn.Square(3),
			nn.PoolConfig{Stride: nn.Square(2), Padding: nn.Square(1)}))
	in := addGroups(s, 64, blocks, func(in int64, g int, stride int64) (nn.Layer, int64) {
		if out := int64(64) << g; d.basic {
			return nn.NewBasicBlock(in, out, stride), out
		}
		out := int64(64*bottleneckExpansion) << g
		return nn.NewBottleneck(in, d.groups*d.width<<g, out, d.groups, stride), out
	})
	return heInit(average(s, in, o))
}

// addGroups adds groups of blocks, layer1, layer2 and so on, to a network with in channels, and
// returns the channels of the last block. Each group but the first halves the size.
func addGroups(s *nn.Sequential, in int64, blocks []int,
	block func(in int64, g int, stride int64) (l nn.Layer, out int64)) int64 {
	for g, n := range blocks {
		group := nn.NewSequential()
		for i := range n {
			stride := int64(1)
			if g > 0 && i == 0 {
				stride = 2
			}
			l, out := block(in, g, stride)
			group.Add(strconv.Itoa(i), l)
			in = out
		}
		s.Add("layer"+strconv.Itoa(g+1), group)
	}
	return in
}
