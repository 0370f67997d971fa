package nn

import (
	"cmp"
	"slices"

	"penstock.example/torch"
)

// affine declares the weight and bias of a norm.
func (b *Base) affine(noAffine bool, shape ...int64) (weight, bias *Param) {
	if noAffine {
		return nil, nil
	}
	return b.Param("weight", Ones, shape...), b.Param("bias", Zeros, shape...)
}

// NormConfig configures a norm. The zero value is PyTorch's default, except for NewInstanceNorm2d.
type NormConfig struct {
	Eps      float64 // added to the variance; 0 is 1e-5, and for RMSNorm float32's epsilon, 2^-23
	NoAffine bool    // no weight and bias
}

// norm is a LayerNorm or a GroupNorm.
type norm struct {
	Base
	Weight, Bias *Param // nil with NoAffine

	kind, operator string
	over           any // the normalised shape, or the number of groups
	eps            float64
	check          func(c *Ctx, x *torch.Tensor) // nil if libtorch checks all
}

func (l *norm) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	if l.check != nil {
		l.check(c, x)
	}
	return c.runInWeightType(x, l.Weight, func(x *torch.Tensor) *torch.Tensor {
		return c.Op(l.operator, x, l.over, l.Weight.Tensor(), l.Bias.Tensor(), l.eps)
	})
}

// NewLayerNorm makes a layer that normalises over the last dimensions, which must have the sizes
// shape, to mean 0 and variance 1, then scales and shifts each element (Ba, Kiros and Hinton 2016).
func NewLayerNorm(shape []int64, o NormConfig) Layer {
	l := &norm{kind: "LayerNorm", operator: "aten::layer_norm", over: slices.Clone(shape),
		eps: cmp.Or(o.Eps, 1e-5)}
	l.Weight, l.Bias = l.affine(o.NoAffine, shape...)
	return l
}

// runInWeightType runs a norm on x in the type of its weight, if it has one. Under autocast x may
// be bfloat16, which libtorch 1.13 cannot scale by float32 on a CPU; on a GPU autocast runs these
// norms in float32 anyway.
func (c *Ctx) runInWeightType(x *torch.Tensor, weight *Param,
	run func(x *torch.Tensor) *torch.Tensor) *torch.Tensor {
	if c.Autocast() == torch.AutocastOff || weight == nil || x.DType() == weight.DType() {
		return run(x)
	}
	converted := c.To(x, weight.DType())
	defer converted.Free() // the graph keeps what it needs
	return run(converted)
}

type rmsNorm struct {
	Base
	Weight *Param // nil with NoAffine

	shape []int64 // the normalised shape
	eps   float64
}

// NewRMSNorm makes a layer that divides by the root mean square over the last dimensions, which
// must have the sizes shape, then scales each element (Zhang and Sennrich 2019, "Root Mean Square
// Layer Normalization", equation 4, with eps as in PyTorch's RMSNorm):
//
//	y = x / sqrt(mean(x^2) + eps) * weight
func NewRMSNorm(shape []int64, o NormConfig) Layer {
	l := &rmsNorm{shape: slices.Clone(shape), eps: cmp.Or(o.Eps, 0x1p-23)}
	if !o.NoAffine {
		l.Weight = l.Param("weight", Ones, l.shape...)
	}
	return l
}

// Forward runs several operators, as libtorch 1.13 has no RMSNorm.
func (l *rmsNorm) Forward(c *Ctx, x *torch.Tensor) *torch.Tensor {
	shape := x.Shape()
	if n := len(shape) - len(l.shape); n < 0 || !slices.Equal(shape[n:], l.shape) {
		c.fail("RMSNorm", []*torch.Tensor{x}, "expected an input whose last dimensions are %v", l.shape)
	}
	dims := make([]int64, len(l.shape))
	for i := range dims {
		dims[i] = int64(i) - int64(len(dims))
	}
	return c.runInWeightType(x, l.Weight, func(x *torch.Tensor) *torch.Tensor {
		mark := c.Mark()
		square := c.Op("aten::mean.dim", c.Mul(x, x), dims, true, nil)
		y := c.Mul(x, c.Op("aten::rsqrt_", c.AddScalar_(square, l.eps)))
		if l.Weight != nil {
			y = c.Mul(y, l.Weight.Tensor())
		}
		c.Release(mark, y)
		return y
	})
}

// NewGroupNorm makes a layer that normalises groups of channels of each sample to mean 0 and
// variance 1, then scales and shifts each channel: [N, channels, ...] to the same (Wu and He 2018).
// channels must be a multiple of groups. The result of a sample depends neither on other samples
// nor on the number of micro-batches.
func NewGroupNorm(groups, channels int64, o NormConfig) Layer {
	l := &norm{kind: "GroupNorm", operator: "aten::group_norm", over: groups, eps: cmp.Or(o.Eps, 1e-5)}
	l.Weight, l.Bias = l.affine(o.NoAffine, channels)
	l.check = func(c *Ctx, x *torch.Tensor) {
		shape, xs := x.Shape(), []*torch.Tensor{x}
		switch {
		case len(shape) < 2 || shape[1] != channels:
			c.fail("aten::group_norm", xs, "expected an input of [N, %d, ...]", channels)
		case shape[0] > 0 && x.Numel() == shape[0]*groups: // no variance: the result would be zero
			c.fail("aten::group_norm", xs, "expected more than 1 value per group and sample")
		}
	}
	return l
}

// NewInstanceNorm2d makes a group norm with a group for each channel: [N, channels, H, W] to the
// same (Ulyanov et al. 2016). On a CPU it takes half the time of aten::instance_norm. It has no
// running statistics. PyTorch's default is NoAffine.
func NewInstanceNorm2d(channels int64, o NormConfig) Layer {
	return NewGroupNorm(channels, channels, o)
}
