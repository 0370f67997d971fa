package models

import (
	"fmt"
	"math"

	"penstock.example/nn"
)

// cifarResNets are the residual networks for small images (He et al. 2015, "Deep Residual
// Learning", section 4.2) of 6n + 2 layers with weights. A shortcut that changes the shape is a
// projection (option B; the paper used option A, which has 2752 parameters fewer).
var cifarResNets = []model{cifarResNet(3), cifarResNet(5), cifarResNet(7), cifarResNet(9)}

func cifarResNet(n int) model {
	return model{
		Info: Info{
			Name: fmt.Sprintf("resnet%d", 6*n+2),
			Summary: fmt.Sprintf("residual network for small images, 3 groups of %d blocks (He et al. "+
				"2015, section 4.2)", n),
			Kind: Image, Input: []int64{3, 32, 32},
			Defaults: Options{Classes: 10, Channels: 3, Size: 32, Width: 16},
		},
		build: func(o Options) (*nn.Sequential, error) { return buildCIFARResNet(n, o), nil },
	}
}

// buildCIFARResNet makes 3n + 2 layers: stem, layer1.0 to layer3.(n-1), head. Stem, head and each
// block are one layer, so that a balance counts blocks.
func buildCIFARResNet(n int, o Options) *nn.Sequential {
	width := int64(o.Width)
	stem := new(unit).
		add("conv", convolution(int64(o.Channels), width, 3, 1)).
		add("bn", norm(width)).
		add("relu", nn.NewReLUInPlace())
	s := nn.NewSequential().Add("stem", stem)
	in := addGroups(s, width, []int{n, n, n}, func(in int64, g int, stride int64) (nn.Layer, int64) {
		block := nn.NewBasicBlock(in, width<<g, stride)
		return nn.Tuple(block, block.ForwardTuple), width << g
	})
	return heInit(s.Add("head", new(unit).average("pool", in, int64(o.Classes))))
}

// heInit starts every convolution of a residual network as He et al. 2015 ("Delving Deep into
// Rectifiers", eq. 14, counted over outputs) and torchvision do.
func heInit(s *nn.Sequential) *nn.Sequential {
	for _, p := range nn.Params(s) {
		if shape := p.Shape(); len(shape) == 4 {
			p.SetInit(nn.Normal(math.Sqrt(2 / float64(shape[0]*shape[2]*shape[3]))))
		}
	}
	return s
}
