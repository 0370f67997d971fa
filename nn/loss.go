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
	// Reduction is how rows are combined. A pipe weights the means of micro-batches by LossWeight.
	Reduction() torch.Reduction
}

// LossWeight is the weight of a micro-batch in the mean of the whole batch: the number of its rows,
// unless the loss has a method
//
//	Weight(c *torch.Ctx, targets []*torch.Tensor) float64
//
// that counts something else, such as the targets that are not ignored. A micro-batch of weight 0
// has no part in loss and gradients.
func LossWeight(c *torch.Ctx, l Loss, rows int64, targets []*torch.Tensor) float64 {
	switch l := unwrapLoss(l).(type) {
	case *operatorLoss:
		if l.classes && len(targets) == 1 && targets[0].DType() == torch.Int64 {
			return l.totalWeight(torch.Values[int64](targets[0]))
		}
	case interface {
		Weight(c *torch.Ctx, targets []*torch.Tensor) float64
	}:
		return l.Weight(c, targets)
	}
	return float64(rows)
}

// TupleLoss makes a Loss of a function that compares the model's tuple of outputs with a tuple of
// targets. The reduction is l's. If l embeds Base, forward may run the children of l. forward is
// usually a method of l:
//
//	nn.TupleLoss(l, l.forward)
func TupleLoss(l reducer, forward func(c *Ctx, outputs, targets []*torch.Tensor) *torch.Tensor) Loss {
	return &tupleLoss{l, forward}
}

type reducer interface{ Reduction() torch.Reduction } // see Loss

type tupleLoss struct {
	reducer
	forward func(c *Ctx, outputs, targets []*torch.Tensor) *torch.Tensor
}

func (l *tupleLoss) Forward(c *Ctx, output, target *torch.Tensor) *torch.Tensor {
	return l.forward(c, []*torch.Tensor{output}, []*torch.Tensor{target})
}

// RunLoss computes the loss of a micro-batch. It panics with a *torch.Error if the result is not a
// scalar.
func RunLoss(c *Ctx, l Loss, outputs, targets []*torch.Tensor) *torch.Tensor {
	both := slices.Concat(outputs, targets)
	running := c.running
	if m, ok := unwrapLoss(l).(Module); ok {
		c.running = m
	} else {
		c.running = &lossLayer{} // has no children to run
	}
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

// unwrapLoss returns the loss without the wrapper of TupleLoss.
func unwrapLoss(l Loss) any {
	if t, ok := l.(*tupleLoss); ok {
		return t.reducer
	}
	return l
}

// LossLayer returns the layer "loss", to be run after the layers of a model. It computes
// Config.Loss from its input and Config.Target.
func LossLayer() NamedLayer {
	l := &lossLayer{}
	return NamedLayer{Name: "loss", Layer: Tuple(l, l.forward)}
}

type lossLayer struct{ Base }

func (l *lossLayer) forward(c *Ctx, xs []*torch.Tensor) []*torch.Tensor {
	return []*torch.Tensor{RunLoss(c, c.Loss, xs, c.Target)}
}
