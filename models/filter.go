package models

import "penstock.example/nn"

// filter is a convolution without a bias, a norm and a ReLU: torchvision's BasicConv2d. In a branch
// of a mixed block it may also be a pool.
type filter struct {
	name     string // may contain a dot, as torchvision's names do
	out      int64
	size     nn.Pair
	stride   int64    // 0 is 1
	unpadded bool     // else padded so that stride 1 keeps the size of the image
	isEnd    bool     // one of the ends of a branch; see branch
	pool     nn.Layer // nil for a convolution
}

// conv is a filter of stride 1 that keeps the size.
func conv(name string, out, height, width int64) filter {
	return filter{name: name, out: out, size: nn.Pair{height, width}}
}

// unpadded is a filter of 3x3 that removes a pixel at each edge.
func unpadded(name string, out int64) filter {
	return filter{name: name, out: out, size: nn.Square(3), unpadded: true}
}

// halve is a filter of 3x3 that halves the size and ignores an incomplete window.
func halve(name string, out int64) filter {
	return filter{name: name, out: out, size: nn.Square(3), stride: 2, unpadded: true}
}

func (f filter) conv(in int64) nn.Layer {
	stride := nn.Square(max(f.stride, 1))
	if f.unpadded {
		return nn.NewConv2d(in, f.out, f.size, nn.ConvConfig{Stride: stride, NoBias: true})
	}
	return convolutionOf(in, f.out, f.size, stride)
}

func (f filter) norm() nn.Layer { return nn.NewBatchNorm2d(f.out, nn.BatchNormConfig{Eps: 0.001}) }

// unit is the filter as one layer.
func (f filter) unit(in int64, relu bool) *unit {
	u := new(unit).add("conv", f.conv(in)).add("bn", f.norm())
	if relu {
		u.add("relu", nn.NewReLUInPlace())
	}
	return u
}

// sequential is the filter as three layers.
func (f filter) sequential(in int64) *nn.Sequential {
	return nn.NewSequential().Add("conv", f.conv(in)).Add("bn", f.norm()).Add("relu", nn.NewReLUInPlace())
}

// inceptionNet is a network under construction.
type inceptionNet struct {
	*nn.Sequential
	channels int64 // of the last layer
}

func (s *inceptionNet) filters(filters ...filter) {
	for _, f := range filters {
		s.Add(f.name, f.sequential(s.channels))
		s.channels = f.out
	}
}

func (s *inceptionNet) mixed(name string, branches [][]filter) {
	l := newMixed(s.channels, branches)
	s.Add(name, l)
	s.channels = l.out
}

// classify ends the network: its own logits, and with Aux those of the auxiliary classifiers.
func (s *inceptionNet) classify(o Options, auxiliaries ...string) {
	s.Add("avgpool", nn.NewAdaptiveAvgPool2d(nn.Square(1))).
		Add("flatten", nn.NewFlatten(1, -1)).
		Add("dropout", nn.NewDropout(o.Dropout)).
		Add("fc", nn.NewLinear(s.channels, int64(o.Classes)))
	if o.Aux {
		s.Add("outputs", newOutputs(auxiliaries...))
	}
}
