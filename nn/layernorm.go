package nn

import (
	"slices"

	"penstock/torch"
)

// LayerNorm normalises over the last dimensions to mean 0 and variance 1, then scales and shifts each element (Ba, Kiros and Hinton 2016).
type LayerNorm struct {
	Base
	Weight, Bias *Param // of the normalised shape; nil with NoAffine

	shape []int64
	eps   float64
}

// LayerNormConfig configures a LayerNorm. The zero value is eps 1e-5, with weight and bias.
type LayerNormConfig struct {
	Eps      float64 // added to the variance; 0 is 1e-5
	NoAffine bool    // no weight and bias
}

// NewLayerNorm makes a LayerNorm over the last len(shape) dimensions, which must have these sizes.
func NewLayerNorm(shape []int64, o LayerNormConfig) *LayerNorm {
	if o.Eps == 0 {
		o.Eps = 1e-5
	}
	require(len(shape) > 0, "LayerNorm: the shape is empty; give the sizes of the last dimensions")
	for _, n := range shape {
		requirePositive("LayerNorm", "a size", n)
	}
	require(o.Eps > 0, "LayerNorm: Eps is %v; it must be positive, or 0 for 1e-5", o.Eps)
	l := &LayerNorm{shape: slices.Clone(shape), eps: o.Eps}
	if !o.NoAffine {
		l.Weight = l.Param("weight", Ones, l.shape...)
		l.Bias = l.Param("bias", Zeros, l.shape...)
	}
	return l
}

// Forward is aten::layer_norm.
func (l *LayerNorm) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	return c.LayerNorm(x, l.shape, l.Weight.Tensor(), l.Bias.Tensor(), l.eps)
}
