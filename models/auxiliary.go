package models

import (
	"penstock.example/nn"
	"penstock.example/torch"
)

// auxiliary is an auxiliary classifier, which reads an activation inside the network and is trained
// with the network's own classifier (Szegedy et al. 2015, "Going Deeper with Convolutions", section
// 5). It returns its input, and hands its logits to the network's last layer as a skip connection,
// which a pipe sends straight to its last stage.
type auxiliary struct {
	unit
	skip string
}

func newAuxiliary(skip string) *auxiliary {
	a := &auxiliary{skip: skip}
	a.Stashes(skip)
	return a
}

// Forward computes logits in training only.
func (a *auxiliary) Forward(c *nn.Ctx, x *torch.Tensor) *torch.Tensor {
	mark := c.Mark()
	var logits *torch.Tensor
	if c.Training {
		logits = c.Run(x, a.layers...)
	}
	c.Stash(a.skip, logits)
	c.Release(mark)
	return x
}

func inceptionAuxiliary(in, classes int64) *auxiliary {
	a := newAuxiliary("AuxLogits")
	a.add("pool", nn.NewAvgPool2d(nn.Square(5), nn.PoolConfig{Stride: nn.Square(3)})).
		add("conv0", conv("conv0", 128, 1, 1).unit(in, true)).
		add("conv1", filter{out: 768, size: nn.Square(5), unpadded: true}.unit(128, true)).
		average("avgpool", 768, classes)
	return a
}

func googleAuxiliary(in, classes int64, skip string, noDropout bool) *auxiliary {
	const channels, side, hidden = 128, 4, 1024
	a := newAuxiliary(skip)
	a.add("avgpool", nn.NewAdaptiveAvgPool2d(nn.Square(side))).
		add("conv", conv("conv", channels, 1, 1).unit(in, true)).
		add("flatten", nn.NewFlatten(1, -1)).
		add("fc1", nn.NewLinear(channels*side*side, hidden)).
		add("relu", nn.NewReLUInPlace())
	if !noDropout {
		a.add("dropout", nn.NewDropout(0.7))
	}
	a.add("fc2", nn.NewLinear(hidden, classes))
	return a
}

// outputs makes the network's tuple: its own logits, then in training the logits [N, classes] of
// each auxiliary classifier.
type outputs struct {
	nn.Base
	auxiliaries []string
}

func newOutputs(auxiliaries ...string) nn.Layer {
	l := &outputs{auxiliaries: auxiliaries}
	l.Pops(auxiliaries...)
	return nn.Tuple(l, l.forward)
}

func (l *outputs) forward(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
	ys := []*torch.Tensor{xs[0]}
	for _, name := range l.auxiliaries {
		if y := c.Pop(name); y != nil {
			ys = append(ys, y)
		}
	}
	return ys
}

// NewAuxiliaryLoss is a loss for networks with auxiliary classifiers (Options.Aux). It adds to the
// loss of the network's own logits, in training, weight times the loss of each auxiliary
// classifier, for the same target. GoogLeNet's authors use a weight of 0.3.
func NewAuxiliaryLoss(loss nn.Loss, weight float64) nn.Loss {
	return nn.TupleLoss(loss, func(c *nn.Ctx, logits, targets []*torch.Tensor) *torch.Tensor {
		mark := c.Mark()
		sum := nn.RunLoss(c, loss, logits[:1], targets)
		for i := 1; i < len(logits); i++ {
			sum = c.Op("aten::add.Tensor", sum, nn.RunLoss(c, loss, logits[i:i+1], targets), weight)
			c.Release(mark, sum)
		}
		return sum
	})
}
