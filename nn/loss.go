package nn

import (
	"slices"

	"penstock.example/torch"
)

// Loss compares an output with a target and gives a scalar. Like a layer it must depend on nothing
// but its arguments. A loss that runs layers embeds Base and declares them with Child; their
// parameters are not the model's, and the caller's to Materialise.
type Loss interface {
	// Forward computes the loss of a micro-batch: output [rows, ...], target [rows, ...].
	Forward(c *Ctx, output, target *torch.Tensor) *torch.Tensor
	// Reduction says how rows are combined, ReduceMean or ReduceSum; a pipe weights the means of
	// micro-batches by their rows.
	Reduction() torch.Reduction
}

// TupleLoss makes a Loss of a function that compares the tuple that the model gives with a tuple of
// targets, as Tuple makes a layer. l gives the reduction, and the children if it embeds Base. forward is
// usually a method of l:
//
//	nn.TupleLoss(l, l.forward)
func TupleLoss(l reducing, forward func(c *Ctx, outputs, targets []*torch.Tensor) *torch.Tensor) Loss {
	return &tupleLoss{l, forward}
}

// reducing says how a loss combines rows; see Loss.
type reducing interface{ Reduction() torch.Reduction }

type tupleLoss struct {
	reducing
	forward func(c *Ctx, outputs, targets []*torch.Tensor) *torch.Tensor
}

func (l *tupleLoss) Forward(c *Ctx, output, target *torch.Tensor) *torch.Tensor {
	return l.forward(c, []*torch.Tensor{output}, []*torch.Tensor{target})
}

// RunLoss computes the loss of a micro-batch, of one tensor or of tuples. A result that is no single
// number fails as an operator does.
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
				"the loss compares one tensor with one, make it with nn.TupleLoss", len(outputs),
				len(targets))
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
		inner = t.reducing
	}
	if m, ok := inner.(Module); ok {
		return m
	}
	return &lossLayer{}
}

// LossLayer returns the layer "loss", which computes the loss of a context (Config.Loss) from what
// a model gives and from the context's targets. After the layers of a model it is a layer like any
// other. It has no parameters.
func LossLayer() NamedLayer {
	l := &lossLayer{}
	return NamedLayer{Name: "loss", Layer: Tuple(l, l.forward)}
}

// lossLayer is the layer of LossLayer. It also stands for a loss that is no module.
type lossLayer struct{ Base }

func (l *lossLayer) forward(c *Ctx, xs []*torch.Tensor) []*torch.Tensor {
	return []*torch.Tensor{RunLoss(c, c.Loss, xs, c.Target)}
}
