package nn

import (
	"slices"

	"penstock.example/torch"
)

// Loss compares an output with a target and gives a scalar. Like a layer it must depend only on its
// arguments. A loss that runs layers embeds Base and declares them with Child. Their parameters do
// not belong to the model: the caller must Materialise them.
type Loss interface {
	// Forward computes the loss of a micro-batch: output [rows, ...], target [rows, ...].
	Forward(c *Ctx, output, target *torch.Tensor) *torch.Tensor
	// Reduction says how rows are combined. A pipe weights the means of micro-batches by their
	// rows.
	Reduction() torch.Reduction
}

// TupleLoss makes a Loss of a function that compares the model's tuple of outputs with a tuple of
// targets. l has the reduction, and the children if it embeds Base. forward is usually its method:
//
//	nn.TupleLoss(l, l.forward)
func TupleLoss(l reducer, forward func(c *Ctx, outputs, targets []*torch.Tensor) *torch.Tensor) Loss {
	return &tupleLoss{l, forward}
}

// reducer says how a loss combines rows; see Loss.
type reducer interface{ Reduction() torch.Reduction }

type tupleLoss struct {
	reducer
	forward func(c *Ctx, outputs, targets []*torch.Tensor) *torch.Tensor
}

func (l *tupleLoss) Forward(c *Ctx, output, target *torch.Tensor) *torch.Tensor {
	return l.forward(c, []*torch.Tensor{output}, []*torch.Tensor{target})
}

// RunLoss computes the loss of a micro-batch. It fails as an operator does if the result is not a
// scalar.
func RunLoss(c *Ctx, l Loss, outputs, targets []*torch.Tensor) *torch.Tensor {
	both := slices.Concat(outputs, targets)
	running := c.running
	c.running = moduleOf(l)
	var loss *torch.Tensor
	if t, ok := l.(*tupleLoss); ok {
		loss = t.forward(c, outputs, targets)
	} else {
		if len(outputs) != 1 || len(targets) != 1 {
			c.fail("loss", both, "the model gives a tuple of %d and the batch has a tuple of %d targets; "+
				"make the loss with nn.TupleLoss", len(outputs), len(targets))
		}
		loss = l.Forward(c, outputs[0], targets[0])
	}
	c.running = running
	if loss == nil || loss.Freed() || len(loss.Shape()) != 0 {
		c.fail("loss", both, "a loss must be a number, a tensor without dimensions; it is %v", loss)
	}
	return loss
}

// moduleOf returns the module that runs while a loss is computed: the loss itself if it embeds
// Base, otherwise a module without children.
func moduleOf(l Loss) Module {
	inner := any(l)
	if t, ok := l.(*tupleLoss); ok {
		inner = t.reducer
	}
	if m, ok := inner.(Module); ok {
		return m
	}
	return &lossLayer{}
}

// LossLayer returns the layer "loss", to be run after the layers of a model. It computes
// Config.Loss from its input and Config.Target. It has no parameters.
func LossLayer() NamedLayer {
	l := &lossLayer{}
	return NamedLayer{Name: "loss", Layer: Tuple(l, l.forward)}
}

// lossLayer is LossLayer's layer. It also stands for a loss that is no module.
type lossLayer struct{ Base }

func (l *lossLayer) forward(c *Ctx, xs []*torch.Tensor) []*torch.Tensor {
	return []*torch.Tensor{RunLoss(c, c.Loss, xs, c.Target)}
}
