package models

import "penstock.example/nn"

// googleNetModel is GoogLeNet (Szegedy et al. 2015, "Going Deeper with Convolutions", table 1) with
// torchvision's names and parameters: norms follow the convolutions, and 3x3 replaces the paper's
// 5x5.
func googleNetModel() model {
	m := imageNet("googlenet", "GoogLeNet for ImageNet, with norms (Szegedy et al. 2015, table 1)", googleNet)
	m.Defaults.Dropout, m.dropout, m.aux, m.least = 0.2, true, true, 15
	return m
}

func googleNet(o Options) (*nn.Sequential, error) {
	s := &inceptionNet{nn.NewSequential(), int64(o.Channels)}
	halves := func(name string, size int64) {
		s.Add(name, nn.NewMaxPool2d(nn.Square(size),
			nn.PoolConfig{Stride: nn.Square(2), CeilMode: true}))
	}
	auxiliary := func(name string) {
		if o.Aux {
			s.Add(name, googleAuxiliary(s.channels, int64(o.Classes), name, o.NoDropout))
		}
	}
	s.filters(filter{name: "conv1", out: 64, size: nn.Square(7), stride: 2})
	halves("maxpool1", 3)
	s.filters(conv("conv2", 64, 1, 1), conv("conv3", 192, 3, 3))
	halves("maxpool2", 3)
	s.mixed("inception3a", inception(64, 96, 128, 16, 32, 32))
	s.mixed("inception3b", inception(128, 128, 192, 32, 96, 64))
	halves("maxpool3", 3)
	s.mixed("inception4a", inception(192, 96, 208, 16, 48, 64))
	auxiliary("aux1")
	s.mixed("inception4b", inception(160, 112, 224, 24, 64, 64))
	s.mixed("inception4c", inception(128, 128, 256, 24, 64, 64))
	s.mixed("inception4d", inception(112, 144, 288, 32, 64, 64))
	auxiliary("aux2")
	s.mixed("inception4e", inception(256, 160, 320, 32, 128, 128))
	halves("maxpool4", 2)
	s.mixed("inception5a", inception(256, 160, 320, 32, 128, 128))
	s.mixed("inception5b", inception(384, 192, 384, 48, 128, 128))
	s.classify(o, "aux1", "aux2")
	return inceptionInit(s.Sequential, 0.01), nil
}

// inception makes a block of the paper's table from the channels in its columns, #1x1 to pool proj.
func inception(c1, reduce3, c3, reduce5, c5, projected int64) [][]filter {
	return [][]filter{
		{conv("branch1", c1, 1, 1)},
		{conv("branch2.0", reduce3, 1, 1), conv("branch2.1", c3, 3, 3)},
		{conv("branch3.0", reduce5, 1, 1), conv("branch3.1", c5, 3, 3)},
		{pool(nn.NewMaxPool2d(nn.Square(3), nn.PoolConfig{Stride: nn.Square(1), Padding: nn.Square(1)})),
			conv("branch4.1", projected, 1, 1)},
	}
}
