package models

import (
	"strconv"

	"penstock.example/nn"
	"penstock.example/torch"
)

// amoebaNets has the AmoebaNet-D (Real et al. 2018, "Regularized Evolution for Image Classifier
// Architecture Search") with which pipelines are compared: that of GPipe (Huang et al. 2019, table
// 1) as torchgpipe's benchmarks have it, whose two numbers are called L and D. It has the
// parameters of GPipe's table, and differs from the paper in three things that were kept, so that
// numbers compare: a normal cell gives states 0, 3, 4 and 6 (as the authors' own code does; the
// paper has 4, 5 and 6), what the paper calls max_pool_3x3 is an average, and a ReLU comes before
// the first convolution.
var amoebaNets = []model{{
	Info: Info{
		Name: "amoebanetd", Summary: "AmoebaNet-D of L normal cells and D filters (Real et al. 2018; Huang et al. 2019, table 1)",
		Kind: Image, Input: []int64{3, 224, 224},
		Defaults: Options{Classes: 1000, Channels: 3, Size: 224, Width: 208, Depth: 18},
	},
	own:   []alias{{"L", "Depth"}, {"D", "Width"}},
	build: amoebaNetD,
}}

// amoebaNetD is a stem of a convolution and two reduction cells, then three times L/3 normal cells
// with a reduction cell between, then the classifier: L + 6 layers. Layers after the first give
// tuples: the new state and the one before. Images must be multiples of 32 pixels high and wide:
// each reduction halves them.
func amoebaNetD(o Options) (*nn.Sequential, error) {
	if o.Depth%3 != 0 {
		return nil, refuse("amoebanetd", "Depth", o.Depth,
			"want L a multiple of 3, as there are three groups of normal cells")
	}
	if o.Width%8 != 0 {
		return nil, refuse("amoebanetd", "Width", o.Width,
			"want D a multiple of 8, as the first cells have D/2 channels and convolutions of a quarter of them")
	}
	if o.Size%32 != 0 {
		return nil, refuse("amoebanetd", "Size", o.Size,
			"want a multiple of 32, as images are halved five times")
	}
	channels := int64(o.Width / 4)
	stem := new(unit).
		add("relu", nn.NewReLU()).
		add("conv", convolution(int64(o.Channels), channels, 3, 2)).
		add("bn", nn.NewBatchNorm2d(channels, nn.BatchNormConfig{}))
	s := nn.NewSequential().Add("stem1", stem)
	g := growth{before: channels, last: channels, channels: channels}
	normal := func(group string) {
		for i := range o.Depth / 3 {
			s.Add(group+"_normal"+strconv.Itoa(i+1), g.cell(normalCell))
		}
	}
	s.Add("stem2", g.cell(reductionCell))
	s.Add("stem3", g.cell(reductionCell))
	normal("cell1")
	s.Add("cell2_reduction", g.cell(reductionCell))
	normal("cell3")
	s.Add("cell4_reduction", g.cell(reductionCell))
	normal("cell5")
	return s.Add("classify", newClassify(g.last, int64(o.Classes))), nil
}

// growth follows the channels of a network that grows by cells.
type growth struct {
	before, last int64 // channels of the last two states
	channels     int64 // in a cell
	halved       bool  // the last cell was a reduction
}

// cell makes the next one. A reduction doubles the channels as it halves the size.
func (g *growth) cell(design genotype) nn.Layer {
	if design.reduces {
		g.channels *= 2
	}
	c := newCell(design, g.before, g.last, g.channels, g.halved)
	g.before, g.last, g.halved = g.last, g.channels*int64(len(design.output)), design.reduces
	return nn.Tuple(c, c.forward)
}

// classify averages the newest state over the image and ends in a linear layer: states [N, in, H,
// W] and another to [N, classes].
type classify struct{ unit }

func newClassify(in, classes int64) nn.Layer {
	l := &classify{}
	l.add("pool", nn.NewAdaptiveAvgPool2d(nn.Square(1))).
		add("flatten", nn.NewFlatten(1, -1)).
		add("fc", nn.NewLinear(in, classes))
	return nn.Tuple(l, l.forward)
}

// forward gives a tuple of one.
func (l *classify) forward(c *nn.Ctx, states []*torch.Tensor) []*torch.Tensor {
	return []*torch.Tensor{c.Run(states[0], l.layers...)}
}
