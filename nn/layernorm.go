package nn

import (
	"slices"

	"penstock.example/torch"
)

// LayerNorm normalises over the last dimensions to mean 0 and variance 1, then scales and shifts
// each element (Ba, Kiros and Hinton 2016).
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
	requireNormalised("LayerNorm", shape)
	require(o.Eps > 0, "LayerNorm: Eps is %v; it must be positive, or 0 for 1e-5", o.Eps)
	l := &LayerNorm{shape: slices.Clone(shape), eps: o.Eps}
	if !o.NoAffine {
		l.Weight = l.Param("weight", Ones, l.shape...)
		l.Bias = l.Param("bias", Zeros, l.shape...)
	}
	return l
}

// Forward is aten::layer_norm. Under autocast, with a weight, it normalises in the weight's type
// and gives that.
func (l *LayerNorm) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	return c.precisely(x, l.Weight, func(x *torch.Tensor) *torch.Tensor {
		return c.LayerNorm(x, l.shape, l.Weight.Tensor(), l.Bias.Tensor(), l.eps)
	})
}

// precisely runs a norm on x in the type of its weight. What comes of a product under autocast is
// bfloat16, which libtorch 1.13 does not scale by float32 on a CPU; on a GPU autocast itself has
// these norms in float32.
func (c *Ctx) precisely(x *torch.Tensor, weight *Param, norm func(x *torch.Tensor) *torch.Tensor) *torch.Tensor {
	if c.Autocast() == torch.AutocastOff || weight == nil || x.DType() == weight.DType() {
		return norm(x)
	}
	precise := c.To(x, weight.DType())
	defer precise.Free() // where the graph does not keep it
	return norm(precise)
}

// requireNormalised refuses a shape that no norm can be over.
func requireNormalised(layer string, shape []int64) {
	require(len(shape) > 0, "%s: the shape is empty; give the sizes of the last dimensions", layer)
	for _, n := range shape {
		requirePositive(layer, "a size", n)
	}
}
