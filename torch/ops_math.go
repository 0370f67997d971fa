package torch

// Typed methods are one line each over the generic call; the declaration above a group is the
// schema that the linked libtorch is checked against. Names follow aten; a trailing underscore
// works in place on its first argument and returns it.

var (
	opAdd         = declare("aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor")
	opAdd_        = declare("aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)")
	opAddOut      = declare("aten::add.out(Tensor self, Tensor other, *, Scalar alpha=1, Tensor(a!) out) -> Tensor(a!)")
	opAddScalar   = declare("aten::add.Scalar(Tensor self, Scalar other) -> Tensor")
	opAddScalar_  = declare("aten::add_.Scalar(Tensor(a!) self, Scalar other) -> Tensor(a!)")
	opSub         = declare("aten::sub.Tensor(Tensor self, Tensor other) -> Tensor")
	opMul         = declare("aten::mul.Tensor(Tensor self, Tensor other) -> Tensor")
	opMul_        = declare("aten::mul_.Tensor(Tensor(a!) self, Tensor other) -> Tensor(a!)")
	opMulScalar   = declare("aten::mul.Scalar(Tensor self, Scalar other) -> Tensor")
	opMulScalar_  = declare("aten::mul_.Scalar(Tensor(a!) self, Scalar other) -> Tensor(a!)")
	opDivScalar_  = declare("aten::div_.Scalar(Tensor(a!) self, Scalar other) -> Tensor(a!)")
	opSqrt        = declare("aten::sqrt(Tensor self) -> Tensor")
	opSqrt_       = declare("aten::sqrt_(Tensor(a!) self) -> Tensor(a!)")
	opSqrtOut     = declare("aten::sqrt.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)")
	opAddcmulOut  = declare("aten::addcmul.out(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1, Tensor(a!) out) -> Tensor(a!)")
	opAddcmul_    = declare("aten::addcmul_(Tensor(a!) self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor(a!)")
	opAddcdiv_    = declare("aten::addcdiv_(Tensor(a!) self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor(a!)")
	opMatmul      = declare("penstock::matmul(Tensor self, Tensor other) -> Tensor")
	opMm          = declare("aten::mm(Tensor self, Tensor mat2) -> Tensor")
	opSum         = declare("aten::sum(Tensor self) -> Tensor")
	opSumDim      = declare("aten::sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor")
	opMean        = declare("aten::mean(Tensor self) -> Tensor")
	opMeanDim     = declare("aten::mean.dim(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor")
	opRsqrt_      = declare("aten::rsqrt_(Tensor(a!) self) -> Tensor(a!)")
	opVarMean     = declare("aten::var_mean.dim(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False) -> (Tensor, Tensor)")
	opArgmax      = declare("aten::argmax(Tensor self, int? dim=None, bool keepdim=False) -> Tensor")
	opEq          = declare("aten::eq.Tensor(Tensor self, Tensor other) -> Tensor")
	opEqual       = declare("aten::equal(Tensor self, Tensor other) -> bool")
	opMaskedFill_ = declare("aten::masked_fill_.Scalar(Tensor(a!) self, Tensor mask, Scalar value) -> Tensor(a!)")
)

// Add is aten::add.Tensor: a + b.
func (c *Ctx) Add(a, b *Tensor) *Tensor { return c.begin(opAdd).t(a).t(b).one() }

// AddScaled is aten::add.Tensor with its factor: a + alpha * b.
func (c *Ctx) AddScaled(a, b *Tensor, alpha float64) *Tensor {
	return c.begin(opAdd).t(a).t(b).f(alpha).one()
}

// Add_ is aten::add_.Tensor: a += alpha * b.
func (c *Ctx) Add_(a, b *Tensor, alpha float64) *Tensor {
	return c.begin(opAdd_).t(a).t(b).f(alpha).same(a)
}

// AddOut is aten::add.out: out = a + alpha * b. Where all three have one shape and element type it
// allocates nothing, as do the other operators with out.
func (c *Ctx) AddOut(out, a, b *Tensor, alpha float64) *Tensor {
	return c.begin(opAddOut).t(a).t(b).f(alpha).t(out).same(out)
}

// AddScalar is aten::add.Scalar: a + v.
func (c *Ctx) AddScalar(a *Tensor, v float64) *Tensor { return c.begin(opAddScalar).t(a).f(v).one() }

// AddScalar_ is aten::add_.Scalar: a += v.
func (c *Ctx) AddScalar_(a *Tensor, v float64) *Tensor {
	return c.begin(opAddScalar_).t(a).f(v).same(a)
}

// AddInt_ is aten::add_.Scalar with an integer: a += v.
func (c *Ctx) AddInt_(a *Tensor, v int64) *Tensor { return c.begin(opAddScalar_).t(a).i(v).same(a) }

// Sub is aten::sub.Tensor: a - b.
func (c *Ctx) Sub(a, b *Tensor) *Tensor { return c.begin(opSub).t(a).t(b).one() }

// Mul is aten::mul.Tensor: a * b, element by element.
func (c *Ctx) Mul(a, b *Tensor) *Tensor { return c.begin(opMul).t(a).t(b).one() }

// Mul_ is aten::mul_.Tensor: a *= b.
func (c *Ctx) Mul_(a, b *Tensor) *Tensor { return c.begin(opMul_).t(a).t(b).same(a) }

// MulScalar is aten::mul.Scalar: a * v.
func (c *Ctx) MulScalar(a *Tensor, v float64) *Tensor { return c.begin(opMulScalar).t(a).f(v).one() }

// MulScalar_ is aten::mul_.Scalar: a *= v.
func (c *Ctx) MulScalar_(a *Tensor, v float64) *Tensor {
	return c.begin(opMulScalar_).t(a).f(v).same(a)
}

// DivScalar_ is aten::div_.Scalar: a /= v.
func (c *Ctx) DivScalar_(a *Tensor, v float64) *Tensor {
	return c.begin(opDivScalar_).t(a).f(v).same(a)
}

// Sqrt is aten::sqrt.
func (c *Ctx) Sqrt(a *Tensor) *Tensor { return c.begin(opSqrt).t(a).one() }

// Sqrt_ is aten::sqrt_.
func (c *Ctx) Sqrt_(a *Tensor) *Tensor { return c.begin(opSqrt_).t(a).same(a) }

// SqrtOut is aten::sqrt.out: out = sqrt(a).
func (c *Ctx) SqrtOut(out, a *Tensor) *Tensor { return c.begin(opSqrtOut).t(a).t(out).same(out) }

// AddcmulOut is aten::addcmul.out: out = a + value * x * y.
func (c *Ctx) AddcmulOut(out, a, x, y *Tensor, value float64) *Tensor {
	return c.begin(opAddcmulOut).t(a).t(x).t(y).f(value).t(out).same(out)
}

// Addcmul_ is aten::addcmul_: a += value * x * y.
func (c *Ctx) Addcmul_(a, x, y *Tensor, value float64) *Tensor {
	return c.begin(opAddcmul_).t(a).t(x).t(y).f(value).same(a)
}

// Addcdiv_ is aten::addcdiv_: a += value * x / y.
func (c *Ctx) Addcdiv_(a, x, y *Tensor, value float64) *Tensor {
	return c.begin(opAddcdiv_).t(a).t(x).t(y).f(value).same(a)
}

// Matmul is aten::matmul, batched over leading dimensions. A batch times a matrix is one product of
// matrices, however the batch lies.
func (c *Ctx) Matmul(a, b *Tensor) *Tensor { return c.begin(opMatmul).t(a).t(b).one() }

// Mm is aten::mm: [n, k] times [k, m].
func (c *Ctx) Mm(a, b *Tensor) *Tensor { return c.begin(opMm).t(a).t(b).one() }

// Sum is aten::sum over all elements.
func (c *Ctx) Sum(a *Tensor) *Tensor { return c.begin(opSum).t(a).one() }

// SumDim is aten::sum.dim_IntList over some dimensions.
func (c *Ctx) SumDim(a *Tensor, dims []int64, keep bool) *Tensor {
	return c.begin(opSumDim).t(a).is(dims).b(keep).one()
}

// SumAs is aten::sum over all elements, accumulated in another element type.
func (c *Ctx) SumAs(a *Tensor, dtype DType) *Tensor {
	return c.begin(opSumDim).t(a).none().b(false).dtype(dtype).one()
}

// Mean is aten::mean over all elements.
func (c *Ctx) Mean(a *Tensor) *Tensor { return c.begin(opMean).t(a).one() }

// MeanDim is aten::mean.dim over some dimensions, which stay with size 1 if keep is set.
func (c *Ctx) MeanDim(a *Tensor, dims []int64, keep bool) *Tensor {
	return c.begin(opMeanDim).t(a).is(dims).b(keep).none().one()
}

// Rsqrt_ is aten::rsqrt_: 1/sqrt(a).
func (c *Ctx) Rsqrt_(a *Tensor) *Tensor { return c.begin(opRsqrt_).t(a).same(a) }

// VarMean is aten::var_mean.dim, biased: the variance, divided by the number of values, and the
// mean over one dimension.
func (c *Ctx) VarMean(a *Tensor, dim int64) (variance, mean *Tensor) {
	out := c.results(c.begin(opVarMean).t(a).is([]int64{dim}).b(false).run())
	return out[0].(*Tensor), out[1].(*Tensor)
}

// Argmax is aten::argmax along a dimension: int64 indices.
func (c *Ctx) Argmax(a *Tensor, dim int64) *Tensor { return c.begin(opArgmax).t(a).i(dim).one() }

// Eq is aten::eq.Tensor: bool.
func (c *Ctx) Eq(a, b *Tensor) *Tensor { return c.begin(opEq).t(a).t(b).one() }

// Equal is aten::equal: whether two tensors have the same shape and the same elements.
func (c *Ctx) Equal(a, b *Tensor) bool { return c.begin(opEqual).t(a).t(b).run()[1] != 0 }

// MaskedFill_ is aten::masked_fill_.Scalar: a becomes value where mask (bool) is set.
func (c *Ctx) MaskedFill_(a, mask *Tensor, value float64) *Tensor {
	return c.begin(opMaskedFill_).t(a).t(mask).f(value).same(a)
}
