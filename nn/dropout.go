package nn

import (
	"penstock.example/torch"
)

type dropout struct {
	Base
	p float64
}

// NewDropout makes a layer that in training zeroes each element with probability p and scales the
// others by 1/(1-p) (Srivastava et al. 2014). In evaluation, or with p = 0, it returns its input
// itself. The mask depends on the run's seed, the micro-batch and the layer's full name, so a
// recomputation drops the same. PyTorch's default for p is 0.5.
func NewDropout(p float64) Layer { return &dropout{p: p} }

func (l *dropout) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	if !c.Training {
		return x
	}
	return c.Dropout(x, l.p)
}

// newDropoutFirst makes dropout of a tuple's first tensor.
func newDropoutFirst(p float64) Layer {
	l := &dropout{p: p}
	return Tuple(l, func(c *Ctx, xs []*torch.Tensor) []*torch.Tensor {
		return append([]*torch.Tensor{l.Forward(c, xs[0])}, xs[1:]...)
	})
}

type dropout2d struct {
	Base
	p float64
}

// NewDropout2d is NewDropout for whole channels of images [N, C, H, W] (Tompson et al. 2015,
// "Efficient Object Localization Using Convolutional Networks", section 3.2).
func NewDropout2d(p float64) Layer { return &dropout2d{p: p} }

func (l *dropout2d) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	if !c.Training || l.p == 0 {
		return x
	}
	shape := x.Shape()
	if len(shape) != 4 {
		c.fail("Dropout2d", []*torch.Tensor{x}, "expected an input of 4 dimensions, [N, C, H, W], got %d",
			len(shape))
	}
	mark := c.Mark()
	var mask *torch.Tensor
	c.NoGrad(func() { mask = c.Dropout(c.Ones(x.DType(), shape[0], shape[1], 1, 1), l.p) })
	y := c.Mul(x, mask)
	c.Release(mark, y)
	return y
}
