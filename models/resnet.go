package models

import (
	"fmt"
	"strconv"

	"penstock.example/nn"
)

// resNets are the residual networks for ImageNet with torchvision's names and parameters: those of
// He et al. 2015 ("Deep Residual Learning", table 1), the 200 layers of He et al. 2016 ("Identity
// Mappings", section 4) with the blocks of 2015, ResNeXt (Xie et al. 2017, "Aggregated Residual
// Transformations") whose 3x3 convolutions are in groups, and wide ones (Zagoruyko and Komodakis
// 2016) whose 3x3 convolutions have twice the channels. They end in an average, so images may be
// small: 32x32 is 1x1 in the last group. Blocks are chains of layers, which a balance may cut
// anywhere: resnet101 has 370.
var resNets = []model{
	resNet("resnet18", "He et al. 2015, table 1", resNetDesign{blocks: []int{2, 2, 2, 2}, basic: true}),
	resNet("resnet34", "He et al. 2015, table 1", resNetDesign{blocks: []int{3, 4, 6, 3}, basic: true}),
	resNet("resnet50", "He et al. 2015, table 1", resNetDesign{blocks: []int{3, 4, 6, 3}}),
	resNet("resnet101", "He et al. 2015, table 1", resNetDesign{blocks: []int{3, 4, 23, 3}}),
	resNet("resnet152", "He et al. 2015, table 1", resNetDesign{blocks: []int{3, 8, 36, 3}}),
	resNet("resnet200", "He et al. 2016", resNetDesign{blocks: []int{3, 24, 36, 3}}),
	resNet("resnext50_32x4d", "Xie et al. 2017", resNetDesign{blocks: []int{3, 4, 6, 3}, groups: 32,
		each: 4}, "resnext50"),
	resNet("resnext101_32x8d", "Xie et al. 2017", resNetDesign{blocks: []int{3, 4, 23, 3}, groups: 32,
		each: 8}, "resnext101"),
	resNet("wide_resnet50_2", "Zagoruyko and Komodakis 2016",
		resNetDesign{blocks: []int{3, 4, 6, 3}, each: 128}, "wide_resnet50"),
	resNet("wide_resnet101_2", "Zagoruyko and Komodakis 2016",
		resNetDesign{blocks: []int{3, 4, 23, 3}, each: 128}, "wide_resnet101"),
}

// resNetDesign has the numbers in which residual networks differ.
type resNetDesign struct {
	blocks []int // in each group
	basic  bool  // basic blocks, else bottlenecks
	// groups and each are those of the 3x3 convolutions of bottlenecks: groups of each channels, in
	// the first group of blocks; 0 is one group, 0 is 64 channels
	groups, each int64
}

// middle is the number of groups and of channels of the 3x3 convolutions in the g-th group of
// blocks.
func (d resNetDesign) middle(g int) (groups, channels int64) {
	groups, each := max(d.groups, 1), d.each
	if each == 0 {
		each = 64
	}
	return groups, groups * each << g
}

func (d resNetDesign) String() string {
	text := fmt.Sprintf("groups of %v bottlenecks", d.blocks)
	switch groups, channels := d.middle(0); {
	case d.basic:
		return fmt.Sprintf("groups of %v basic blocks", d.blocks)
	case groups > 1:
		return fmt.Sprintf("%s, %d x %d channels in their middle", text, groups, channels/groups)
	case channels != 64:
		return fmt.Sprintf("%s, %d channels in their middle", text, channels)
	}
	return text
}

func resNet(name, source string, d resNetDesign, also ...string) model {
	return model{
		Info: Info{
			Name: name, Summary: fmt.Sprintf("residual network for ImageNet, %v (%s)", d, source),
			Kind: Image, Input: []int64{3, 224, 224},
			Defaults: Options{Classes: 1000, Channels: 3, Size: 224},
		},
		also:  also,
		build: func(o Options) (*nn.Sequential, error) { return buildResNet(d, o), nil },
	}
}

func buildResNet(d resNetDesign, o Options) *nn.Sequential {
	s := nn.NewSequential().
		Add("conv1", convolution(int64(o.Channels), 64, 7, 2)).
		Add("bn1", nn.NewBatchNorm2d(64, nn.BatchNormConfig{})).
		Add("relu", nn.NewReLU()).
		Add("maxpool", nn.NewMaxPool2d(nn.Square(3),
			nn.MaxPool2dConfig{Stride: nn.Square(2), Padding: nn.Square(1)}))
	in := int64(64)
	for g, n := range d.blocks {
		out, group := int64(64)<<g, nn.NewSequential()
		if !d.basic {
			out *= nn.BottleneckExpansion
		}
		for i := range n {
			stride := int64(1)
			if g > 0 && i == 0 {
				stride = 2
			}
			if d.basic {
				group.Add(strconv.Itoa(i), basicBlock(in, out, stride))
			} else {
				groups, middle := d.middle(g)
				group.Add(strconv.Itoa(i), bottleneck(in, middle, out, groups, stride))
			}
			in = out
		}
		s.Add("layer"+strconv.Itoa(g+1), group)
	}
	return heInit(average(s, in, o))
}
