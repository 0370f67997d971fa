package models

import (
	"fmt"

	"penstock.example/nn"
	"penstock.example/torch"
)

// amoebaNet is AmoebaNet-D (Real et al. 2018, "Regularized Evolution for Image Classifier
// Architecture Search") with the sizes L and D and the numbers of parameters of GPipe (Huang et al.
// 2019, table 1) and torchgpipe's benchmarks. For comparable numbers it differs from the paper
// where torchgpipe does: a normal cell outputs states 0, 3, 4 and 6 (as in the authors' code; the
// paper has 4, 5 and 6), max_pool_3x3 is an average, and a ReLU comes before the first convolution.
func amoebaNet() model {
	m := imageNet("amoebanetd",
		"AmoebaNet-D of L normal cells and D filters (Real et al. 2018; Huang et al. 2019, table 1)",
		amoebaNetD)
	m.Defaults.Width, m.Defaults.Depth, m.aliases = 208, 18, []alias{{"L", "Depth"}, {"D", "Width"}}
	return m
}

// amoebaNetD is a stem of a convolution and two reduction cells, then three groups of L/3 normal
// cells with a reduction cell between groups, then the classifier: L + 6 layers. Cells return
// tuples of the new state and the last.
func amoebaNetD(o Options) (*nn.Sequential, error) {
	if o.Depth%3 != 0 {
		return nil, refuse("amoebanetd", "Depth", o.Depth,
			"want L a multiple of 3, as there are three groups of normal cells")
	}
	if o.Width%8 != 0 {
		return nil, refuse("amoebanetd", "Width", o.Width,
			"want D a multiple of 8, as the first cells have convolutions of D/8 channels")
	}
	if o.Size%32 != 0 {
		return nil, refuse("amoebanetd", "Size", o.Size,
			"want a multiple of 32, as images are halved five times")
	}
	channels := int64(o.Width / 4)
	stem := new(unit).
		add("relu", nn.NewReLU()).
		add("conv", convolution(int64(o.Channels), channels, 3, 2)).
		add("bn", norm(channels))
	s := nn.NewSequential()
	before, last, halved := channels, channels, false // the channels of the last two states
	add := func(name string, design genotype) {
		if design.reduces { // the channels double as the size is halved
			channels *= 2
		}
		c := newCell(design, before, last, channels, halved)
		s.Add(name, nn.Tuple(c, c.forward))
		before, last, halved = last, channels*int64(len(design.output)), design.reduces
	}
	s.Add("stem1", stem)
	add("stem2", reductionCell)
	add("stem3", reductionCell)
	for group := 1; group <= 5; group++ {
		if group%2 == 0 {
			add(fmt.Sprintf("cell%d_reduction", group), reductionCell)
			continue
		}
		for i := range o.Depth / 3 {
			add(fmt.Sprintf("cell%d_normal%d", group, i+1), normalCell)
		}
	}
	head := new(unit).average("pool", last, int64(o.Classes))
	return s.Add("classify", nn.Tuple(head, func(c *nn.Ctx, states []*torch.Tensor) []*torch.Tensor {
		return []*torch.Tensor{head.Forward(c, states[0])}
	})), nil
}
