package nn

import (
	"cmp"
	"fmt"
	"slices"

	"penstock.example/torch"
)

// RMSNorm divides by the root of the mean square over the last dimensions, then scales each element
// (Zhang and Sennrich 2019, "Root Mean Square Layer Normalization", equation 4, with eps as
// PyTorch's RMSNorm has it):
//
//	y = x / sqrt(mean(x^2) + eps) * weight
type RMSNorm struct {
	Base
	Weight *Param // of the normalised shape; nil with NoAffine

	shape []int64
	eps   float64
}

// RMSNormConfig configures an RMSNorm. The zero value is PyTorch's default: the eps of float32, with
// a weight.
type RMSNormConfig struct {
	Eps      float64 // added to the mean square; 0 is 2^-23, the distance from 1 to the next float32
	NoAffine bool    // no weight
}

// NewRMSNorm makes an RMSNorm over the last len(shape) dimensions, which must have these sizes. The
// weight starts at 1.
func NewRMSNorm(shape []int64, o RMSNormConfig) *RMSNorm {
	l := &RMSNorm{shape: slices.Clone(shape), eps: cmp.Or(o.Eps, 0x1p-23)}
	requireNormalised("RMSNorm", shape)
	require(l.eps > 0, "RMSNorm: Eps is %v; it must be positive, or 0 for that of float32", l.eps)
	if !o.NoAffine {
		l.Weight = l.Param("weight", Ones, l.shape...)
	}
	return l
}

// Forward is made of several operators: libtorch 1.13 has none. Under autocast, with a weight, it
// normalises in the weight's type and gives that.
func (l *RMSNorm) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	shape := x.Shape()
	if n := len(shape) - len(l.shape); n < 0 || !slices.Equal(shape[n:], l.shape) {
		panic(&torch.Error{Op: "RMSNorm", Args: []string{x.String()}, Device: c.Device(),
			Message: fmt.Sprintf("expected an input whose last dimensions are %v", l.shape)})
	}
	dims := make([]int64, len(l.shape))
	for i := range dims {
		dims[i] = int64(i) - int64(len(dims))
	}
	return c.precisely(x, l.Weight, func(x *torch.Tensor) *torch.Tensor {
		mark := c.Mark()
		scale := c.Rsqrt_(c.AddScalar_(c.MeanDim(c.Mul(x, x), dims, true), l.eps))
		y := c.Mul(x, scale)
		if l.Weight != nil {
			y = c.Mul(y, l.Weight.Tensor())
		}
		c.Release(mark, y)
		return y
	})
}
