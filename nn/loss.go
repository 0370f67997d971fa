package nn

import "penstock/torch"

// Loss compares an output with a target and gives a scalar. Like a layer it must depend on nothing but its arguments.
type Loss interface {
	// Forward computes the loss of a micro-batch: output [rows, ...], target [rows, ...].
	Forward(c *Ctx, output, target *torch.Tensor) *torch.Tensor
	// Reduction says how rows are combined, ReduceMean or ReduceSum; a pipe weights the means of micro-batches by their rows.
	Reduction() torch.Reduction
}
