package models

import (
	"penstock.example/nn"
	"penstock.example/torch"
)

// Auxiliary classifiers read an activation inside the network and are trained with its own
// classifier (Szegedy et al. 2015, "Going Deeper with Convolutions", section 5). One hands its
// logits on as a skip connection to the network's last layer, so that nothing between them is
// concerned, and a pipe sends them straight to its last stage.

// auxiliary is an auxiliary classifier: it gives its input.
type auxiliary struct {
	unit
	skip string
}

func newAuxiliary(skip string) *auxiliary {
	a := &auxiliary{skip: skip}
	a.Stashes(skip)
	return a
}

// Forward returns x. In evaluation the classifier does nothing.
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

// inceptionAuxiliary is Inception v3's auxiliary classifier.
func inceptionAuxiliary(in, classes int64) *auxiliary {
	a := newAuxiliary("AuxLogits")
	a.add("pool", nn.NewAvgPool2d(nn.Square(5), nn.PoolConfig{Stride: nn.Square(3)})).
		add("conv0", conv("conv0", 128, 1, 1).unit(in, true)).
		add("conv1", filter{out: 768, size: nn.Square(5), unpadded: true}.unit(128, true)).
		average("avgpool", 768, classes)
	return a
}

// googleAuxiliary is one of GoogLeNet's.
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

// outputs makes the network's tuple: its own logits, and in training the logits of its
// auxiliary classifiers.
type outputs struct {
	nn.Base
	auxiliaries []string
}

func newOutputs(auxiliaries ...string) nn.Layer {
	l := &outputs{auxiliaries: auxiliaries}
	l.Pops(auxiliaries...)
	return nn.Tuple(l, l.forward)
}

// forward appends the auxiliary classifiers' logits, [N, classes] each.
func (l *outputs) forward(c *nn.Ctx, xs []*torch.Tensor) []*torch.Tensor {
	ys := []*torch.Tensor{xs[0]}
	for _, name := range l.auxiliaries {
		if y := c.Pop(name); y != nil {
			ys = append(ys, y)
		}
	}
	return ys
}

// NewAuxiliaryLoss is a loss for networks with auxiliary classifiers (Options.Aux): the loss of the
// network's own logits plus weight times each classifier's, against one target. In evaluation there
// are no classifiers. GoogLeNet's authors weigh by 0.3.
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
