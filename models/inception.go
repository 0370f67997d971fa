package models

import "penstock.example/nn"

// inceptionModel is Inception v3 (Szegedy et al. 2016, "Rethinking the Inception Architecture for
// Computer Vision") with torchvision's names and parameters.
func inceptionModel() model {
	m := imageNet("inception_v3", "Inception v3 for ImageNet (Szegedy et al. 2016), images from 75x75",
		inceptionV3)
	m.Input = []int64{3, 299, 299}
	m.Defaults.Size, m.Defaults.Dropout, m.dropout, m.aux, m.least = 299, 0.5, true, true, 75
	return m
}

func inceptionV3(o Options) (*nn.Sequential, error) {
	const least = 299
	if o.Aux && o.Size < least {
		return nil, refuse("inception_v3", "Size", o.Size,
			"want at least %d with Aux, as the auxiliary classifier needs 17x17 pixels where it reads", least)
	}
	s := &inceptionNet{nn.NewSequential(), int64(o.Channels)}
	s.filters(halve("Conv2d_1a_3x3", 32), unpadded("Conv2d_2a_3x3", 32), conv("Conv2d_2b_3x3", 64, 3, 3))
	s.Add("maxpool1", halvingPool())
	s.filters(conv("Conv2d_3b_1x1", 80, 1, 1), unpadded("Conv2d_4a_3x3", 192))
	s.Add("maxpool2", halvingPool())
	s.mixed("Mixed_5b", inceptionA(32))
	s.mixed("Mixed_5c", inceptionA(64))
	s.mixed("Mixed_5d", inceptionA(64))
	s.mixed("Mixed_6a", inceptionB())
	s.mixed("Mixed_6b", inceptionC(128))
	s.mixed("Mixed_6c", inceptionC(160))
	s.mixed("Mixed_6d", inceptionC(160))
	s.mixed("Mixed_6e", inceptionC(192))
	if o.Aux {
		s.Add("AuxLogits", inceptionAuxiliary(s.channels, int64(o.Classes)))
	}
	s.mixed("Mixed_7a", inceptionD())
	s.mixed("Mixed_7b", inceptionE())
	s.mixed("Mixed_7c", inceptionE())
	s.classify(o, "AuxLogits")
	return inceptionInit(s.Sequential, 0.1), nil
}

// The blocks have torchvision's names. At the default size A works on 35x35 pixels, C on 17x17 and
// E on 8x8; B and D reduce the size.

func inceptionA(projected int64) [][]filter {
	return [][]filter{
		{conv("branch1x1", 64, 1, 1)},
		{conv("branch5x5_1", 48, 1, 1), conv("branch5x5_2", 64, 5, 5)},
		{conv("branch3x3dbl_1", 64, 1, 1), conv("branch3x3dbl_2", 96, 3, 3),
			conv("branch3x3dbl_3", 96, 3, 3)},
		{pool(smoothingPool()), conv("branch_pool", projected, 1, 1)},
	}
}

func inceptionB() [][]filter {
	return [][]filter{
		{halve("branch3x3", 384)},
		{conv("branch3x3dbl_1", 64, 1, 1), conv("branch3x3dbl_2", 96, 3, 3), halve("branch3x3dbl_3", 96)},
		{pool(halvingPool())},
	}
}

func inceptionC(middle int64) [][]filter {
	return [][]filter{
		{conv("branch1x1", 192, 1, 1)},
		{conv("branch7x7_1", middle, 1, 1), conv("branch7x7_2", middle, 1, 7),
			conv("branch7x7_3", 192, 7, 1)},
		{conv("branch7x7dbl_1", middle, 1, 1), conv("branch7x7dbl_2", middle, 7, 1),
			conv("branch7x7dbl_3", middle, 1, 7), conv("branch7x7dbl_4", middle, 7, 1),
			conv("branch7x7dbl_5", 192, 1, 7)},
		{pool(smoothingPool()), conv("branch_pool", 192, 1, 1)},
	}
}

func inceptionD() [][]filter {
	return [][]filter{
		{conv("branch3x3_1", 192, 1, 1), halve("branch3x3_2", 320)},
		{conv("branch7x7x3_1", 192, 1, 1), conv("branch7x7x3_2", 192, 1, 7),
			conv("branch7x7x3_3", 192, 7, 1), halve("branch7x7x3_4", 192)},
		{pool(halvingPool())},
	}
}

func inceptionE() [][]filter {
	return [][]filter{
		{conv("branch1x1", 320, 1, 1)},
		{conv("branch3x3_1", 384, 1, 1), asEnd(conv("branch3x3_2a", 384, 1, 3)),
			asEnd(conv("branch3x3_2b", 384, 3, 1))},
		{conv("branch3x3dbl_1", 448, 1, 1), conv("branch3x3dbl_2", 384, 3, 3),
			asEnd(conv("branch3x3dbl_3a", 384, 1, 3)), asEnd(conv("branch3x3dbl_3b", 384, 3, 1))},
		{pool(smoothingPool()), conv("branch_pool", 192, 1, 1)},
	}
}

func halvingPool() nn.Layer {
	return nn.NewMaxPool2d(nn.Square(3), nn.PoolConfig{Stride: nn.Square(2)})
}

// smoothingPool averages 3x3 pixels and keeps the size.
func smoothingPool() nn.Layer {
	return nn.NewAvgPool2d(nn.Square(3), nn.PoolConfig{Stride: nn.Square(1), Padding: nn.Square(1)})
}

// inceptionInit sets torchvision's initialisers, but not its truncation at 2, twenty deviations
// away.
func inceptionInit(s *nn.Sequential, deviation float64) *nn.Sequential {
	for _, p := range nn.Params(s) {
		switch {
		case p.Name == "AuxLogits.fc.weight":
			p.SetInit(nn.Normal(0.001))
		case len(p.Shape()) > 1:
			p.SetInit(nn.Normal(deviation))
		}
	}
	return s
}
