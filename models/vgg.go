package models

import (
	"fmt"
	"strconv"
	"strings"

	"penstock.example/nn"
)

// vggs are the networks of Simonyan and Zisserman 2014 ("Very Deep Convolutional Networks", table
// 1, columns A, B, D and E), without and with norms after the convolutions, with torchvision's
// names and parameters.
var vggs = []model{
	vgg("vgg11", false, 1, 1, 2, 2, 2), vgg("vgg11_bn", true, 1, 1, 2, 2, 2),
	vgg("vgg13", false, 2, 2, 2, 2, 2), vgg("vgg13_bn", true, 2, 2, 2, 2, 2),
	vgg("vgg16", false, 2, 2, 3, 3, 3), vgg("vgg16_bn", true, 2, 2, 3, 3, 3),
	vgg("vgg19", false, 2, 2, 4, 4, 4), vgg("vgg19_bn", true, 2, 2, 4, 4, 4),
}

func vgg(name string, norms bool, convolutions ...int) model {
	with := ""
	if norms {
		with = " with norms"
	}
	m := imageNet(name, fmt.Sprintf("VGG, groups of %v convolutions%s (Simonyan and Zisserman 2014, table 1)",
		convolutions, with),
		func(o Options) (*nn.Sequential, error) { return buildVGG(norms, convolutions, o), nil })
	m.Defaults.Width, m.Defaults.Dropout, m.dropout, m.least = 4096, 0.5, true, 32
	return m
}

// buildVGG is features.0, features.1, ..., avgpool, flatten, classifier.0 to classifier.6.
func buildVGG(norms bool, convolutions []int, o Options) *nn.Sequential {
	features, in := nn.NewSequential(), int64(o.Channels)
	add := func(l nn.Layer) { features.Add(strconv.Itoa(features.Len()), l) }
	for g, n := range convolutions {
		out := min(int64(64)<<g, 512)
		for range n {
			add(nn.NewConv2d(in, out, nn.Square(3), nn.ConvConfig{Padding: nn.Square(1)}))
			if norms {
				add(norm(out))
			}
			add(nn.NewReLUInPlace())
			in = out
		}
		add(nn.NewMaxPool2d(nn.Square(2), nn.PoolConfig{}))
	}
	const pooled = 7
	hidden := int64(o.Width)
	s := nn.NewSequential().
		Add("features", features).
		Add("avgpool", nn.NewAdaptiveAvgPool2d(nn.Square(pooled))).
		Add("flatten", nn.NewFlatten(1, -1)).
		Add("classifier", nn.NewSequential(
			nn.NewLinear(in*pooled*pooled, hidden), nn.NewReLUInPlace(), nn.NewDropout(o.Dropout),
			nn.NewLinear(hidden, hidden), nn.NewReLUInPlace(), nn.NewDropout(o.Dropout),
			nn.NewLinear(hidden, int64(o.Classes))))
	return vggInit(s)
}

// vggInit sets torchvision's initialisers: heInit for convolutions, a deviation of 0.01 for the
// classifier's weights, zero for biases.
func vggInit(s *nn.Sequential) *nn.Sequential {
	for _, p := range nn.Params(heInit(s)) {
		switch {
		case len(p.Shape()) == 2:
			p.SetInit(nn.Normal(0.01))
		case strings.HasSuffix(p.Name, "bias"):
			p.SetInit(nn.Zeros)
		}
	}
	return s
}
