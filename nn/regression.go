package nn

import (
	"penstock.example/torch"
)

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

// requireOneShape refuses what libtorch would broadcast: [N, 1] against [N] is N*N differences, a
// loss that falls and means nothing.
func requireOneShape(op string, output, target *torch.Tensor) {
	if !output.SameShape(target) {
		panic(&torch.Error{Op: op, Args: []string{output.String(), target.String()},
			Message: "output and target must have one shape; reshape the target"})
	}
}

// L1Loss is |output - target|, for tensors of one shape.
type L1Loss struct{ reduction }

// L1 is the mean over all elements.
func L1() L1Loss { return L1Loss{} }

// Sum adds up instead of averaging.
func (l L1Loss) Sum() L1Loss { return L1Loss{summed} }

// Forward is aten::l1_loss.
func (l L1Loss) Forward(c *Ctx, output, target *torch.Tensor) *torch.Tensor {
	requireOneShape("aten::l1_loss", output, target)
	requireRows("aten::l1_loss", l, output, target)
	return c.L1(output, target, l.Reduction())
}

// HuberLoss is d^2 / 2 where d = |output - target| is at most delta, and delta (d - delta / 2)
// elsewhere (Huber 1964, "Robust Estimation of a Location Parameter"), for tensors of one shape.
type HuberLoss struct {
	reduction
	delta float64
}

// Huber is the mean over all elements. Delta must be positive; PyTorch's default is 1.
func Huber(delta float64) HuberLoss {
	require(delta > 0, "Huber: delta is %v; it must be positive", delta)
	return HuberLoss{delta: delta}
}

// Sum adds up instead of averaging.
func (l HuberLoss) Sum() HuberLoss { l.reduction = summed; return l }

// Forward is aten::huber_loss.
func (l HuberLoss) Forward(c *Ctx, output, target *torch.Tensor) *torch.Tensor {
	requireOneShape("aten::huber_loss", output, target)
	requireRows("aten::huber_loss", l, output, target)
	return c.Huber(output, target, l.Reduction(), l.delta)
}
