package models

import (
	"strconv"

	"penstock.example/nn"
)

var mlps = []model{{
	Info: Info{
		Name: "mlp", Summary: "multi-layer perceptron: fully connected layers of 256 units with ReLU",
		Kind: Image, Input: []int64{1, 28, 28},
		Defaults: Options{Classes: 10, Channels: 1, Size: 28, Width: 256, Depth: 2},
	},
	dropout: true,
	build:   func(o Options) (*nn.Sequential, error) { return mlp(o), nil },
}}

// mlp is flatten, fc1, relu1, drop1, fc2, ..., fc.
func mlp(o Options) *nn.Sequential {
	s := nn.NewSequential().Add("flatten", nn.NewFlatten(1, -1))
	in := int64(o.Channels) * int64(o.Size) * int64(o.Size)
	for i := 1; i <= o.Depth; i++ {
		n := strconv.Itoa(i)
		s.Add("fc"+n, nn.NewLinear(in, int64(o.Width)))
		s.Add("relu"+n, nn.NewReLU())
		addDropout(s, "drop"+n, o.Dropout)
		in = int64(o.Width)
	}
	return s.Add("fc", nn.NewLinear(in, int64(o.Classes)))
}
