package torch

// Methods of Ctx that are named as operators of libtorch are these operators. One with a trailing
// underscore works in place on its first argument and returns it; one with Out writes to that, and
// allocates nothing where all tensors have one shape and element type. Comments say what a name does not.

func (c *Ctx) Add(a, b *Tensor) *Tensor { return c.op("aten::add.Tensor").t(a).t(b).one() }
func (c *Ctx) Sub(a, b *Tensor) *Tensor { return c.op("aten::sub.Tensor").t(a).t(b).one() }

// AddScaled is a + alpha * b.
func (c *Ctx) AddScaled(a, b *Tensor, alpha float64) *Tensor {
	return c.op("aten::add.Tensor").t(a).t(b).f(alpha).one()
}

// Add_ is a += alpha * b.
func (c *Ctx) Add_(a, b *Tensor, alpha float64) *Tensor {
	return c.op("aten::add_.Tensor").t(a).t(b).f(alpha).same(a)
}

// AddOut is out = a + alpha * b.
func (c *Ctx) AddOut(out, a, b *Tensor, alpha float64) *Tensor {
	return c.op("aten::add.out").t(a).t(b).f(alpha).t(out).same(out)
}

func (c *Ctx) AddScalar(a *Tensor, v float64) *Tensor {
	return c.op("aten::add.Scalar").t(a).f(v).one()
}
func (c *Ctx) AddScalar_(a *Tensor, v float64) *Tensor {
	return c.op("aten::add_.Scalar").t(a).f(v).same(a)
}

// AddInt_ is AddScalar_ of an integer.
func (c *Ctx) AddInt_(a *Tensor, v int64) *Tensor { return c.op("aten::add_.Scalar").t(a).i(v).same(a) }

// Mul multiplies element by element, as Mul_ does.
func (c *Ctx) Mul(a, b *Tensor) *Tensor  { return c.op("aten::mul.Tensor").t(a).t(b).one() }
func (c *Ctx) Mul_(a, b *Tensor) *Tensor { return c.op("aten::mul_.Tensor").t(a).t(b).same(a) }
func (c *Ctx) MulScalar(a *Tensor, v float64) *Tensor {
	return c.op("aten::mul.Scalar").t(a).f(v).one()
}
func (c *Ctx) MulScalar_(a *Tensor, v float64) *Tensor {
	return c.op("aten::mul_.Scalar").t(a).f(v).same(a)
}
func (c *Ctx) DivScalar_(a *Tensor, v float64) *Tensor {
	return c.op("aten::div_.Scalar").t(a).f(v).same(a)
}
func (c *Ctx) Sqrt_(a *Tensor) *Tensor        { return c.op("aten::sqrt_").t(a).same(a) }
func (c *Ctx) SqrtOut(out, a *Tensor) *Tensor { return c.op("aten::sqrt.out").t(a).t(out).same(out) }

// Rsqrt_ is 1/sqrt(a).
func (c *Ctx) Rsqrt_(a *Tensor) *Tensor { return c.op("aten::rsqrt_").t(a).same(a) }

// AddcmulOut is out = a + value * x * y.
func (c *Ctx) AddcmulOut(out, a, x, y *Tensor, value float64) *Tensor {
	return c.op("aten::addcmul.out").t(a).t(x).t(y).f(value).t(out).same(out)
}

// Addcmul_ is a += value * x * y.
func (c *Ctx) Addcmul_(a, x, y *Tensor, value float64) *Tensor {
	return c.op("aten::addcmul_").t(a).t(x).t(y).f(value).same(a)
}

// Addcdiv_ is a += value * x / y.
func (c *Ctx) Addcdiv_(a, x, y *Tensor, value float64) *Tensor {
	return c.op("aten::addcdiv_").t(a).t(x).t(y).f(value).same(a)
}

// Matmul is batched over leading dimensions. A batch times a matrix is one product of matrices, however
// the batch lies.
func (c *Ctx) Matmul(a, b *Tensor) *Tensor { return c.op("penstock::matmul").t(a).t(b).one() }

// Mm is [n, k] times [k, m].
func (c *Ctx) Mm(a, b *Tensor) *Tensor { return c.op("aten::mm").t(a).t(b).one() }

// Sum is over all elements, as Mean is.
func (c *Ctx) Sum(a *Tensor) *Tensor  { return c.op("aten::sum").t(a).one() }
func (c *Ctx) Mean(a *Tensor) *Tensor { return c.op("aten::mean").t(a).one() }

// SumDim is over some dimensions, which stay with size 1 if keep is set, as those of MeanDim do.
func (c *Ctx) SumDim(a *Tensor, dims []int64, keep bool) *Tensor {
	return c.op("aten::sum.dim_IntList").t(a).is(dims).b(keep).one()
}
func (c *Ctx) MeanDim(a *Tensor, dims []int64, keep bool) *Tensor {
	return c.op("aten::mean.dim").t(a).is(dims).b(keep).none().one()
}

// VarMean is, over one dimension, the variance, divided by the number of values, and the mean.
func (c *Ctx) VarMean(a *Tensor, dim int64) (variance, mean *Tensor) {
	out := c.results(c.op("aten::var_mean.dim").t(a).is([]int64{dim}).b(false).run())
	return out[0].(*Tensor), out[1].(*Tensor)
}

// Argmax gives int64 indices.
func (c *Ctx) Argmax(a *Tensor, dim int64) *Tensor { return c.op("aten::argmax").t(a).i(dim).one() }

// Eq gives a torch.Bool for each element.
func (c *Ctx) Eq(a, b *Tensor) *Tensor { return c.op("aten::eq.Tensor").t(a).t(b).one() }

// Equal reports whether two tensors have the same shape and the same elements.
func (c *Ctx) Equal(a, b *Tensor) bool { return c.op("aten::equal").t(a).t(b).run()[1] != 0 }

// MaskedFill_ sets a to value where mask (torch.Bool) is set.
func (c *Ctx) MaskedFill_(a, mask *Tensor, value float64) *Tensor {
	return c.op("aten::masked_fill_.Scalar").t(a).t(mask).f(value).same(a)
}
