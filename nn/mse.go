package nn

import "penstock.example/torch"

// MSELoss is (output - target)^2, for tensors of one shape.
type MSELoss struct{ reduction }

// MSE is the mean over all elements.
func MSE() MSELoss { return MSELoss{} }

// Sum adds up instead of averaging.
func (l MSELoss) Sum() MSELoss { return MSELoss{summed} }

// Forward is aten::mse_loss.
func (l MSELoss) Forward(c *Ctx, output, target *torch.Tensor) *torch.Tensor {
	requireOneShape("aten::mse_loss", output, target)
	requireRows("aten::mse_loss", l, output, target)
	return c.MSE(output, target, l.Reduction())
}

// Targets is 0 everywhere.
func (l MSELoss) Targets(c *torch.Ctx, outputs []*torch.Tensor) []*torch.Tensor {
	return zerosLike(c, outputs[0])
}

// zerosLike is a target of an output's type and shape.
func zerosLike(c *torch.Ctx, output *torch.Tensor) []*torch.Tensor {
	return []*torch.Tensor{c.Zeros(output.DType(), output.Shape()...)}
}

// requireOneShape refuses what libtorch would broadcast: [N, 1] against [N] is N*N differences, a
// loss that falls and means nothing.
func requireOneShape(op string, output, target *torch.Tensor) {
	if !output.SameShape(target) {
		panic(&torch.Error{Op: op, Args: []string{output.String(), target.String()},
			Message: "output and target must have one shape; reshape the target"})
	}
}
