package torch

// Methods of Ctx run the operators of libtorch with the same name; Op runs the others. A method
// with a trailing underscore changes its first argument in place and returns it.

// Reduction says how a loss becomes a number. The values are libtorch's.
type Reduction int64

const (
	ReduceMean Reduction = 1
	ReduceSum  Reduction = 2
)

func (c *Ctx) Add(a, b *Tensor) *Tensor { return c.op("aten::add.Tensor").t(a).t(b).one() }
func (c *Ctx) Sub(a, b *Tensor) *Tensor { return c.op("aten::sub.Tensor").t(a).t(b).one() }

// Add_ is a += alpha * b.
func (c *Ctx) Add_(a, b *Tensor, alpha float64) *Tensor {
	return c.op("aten::add_.Tensor").t(a).t(b).f(alpha).inPlace(a)
}

func (c *Ctx) AddScalar_(a *Tensor, v float64) *Tensor {
	return c.op("aten::add_.Scalar").t(a).f(v).inPlace(a)
}
func (c *Ctx) AddInt_(a *Tensor, v int64) *Tensor {
	return c.op("aten::add_.Scalar").t(a).i(v).inPlace(a)
}

func (c *Ctx) Mul(a, b *Tensor) *Tensor { return c.op("aten::mul.Tensor").t(a).t(b).one() }
func (c *Ctx) MulScalar(a *Tensor, v float64) *Tensor {
	return c.op("aten::mul.Scalar").t(a).f(v).one()
}
func (c *Ctx) MulScalar_(a *Tensor, v float64) *Tensor {
	return c.op("aten::mul_.Scalar").t(a).f(v).inPlace(a)
}

// Matmul is batched over leading dimensions. A batch times one matrix is a single product, also if
// the batch is not contiguous.
func (c *Ctx) Matmul(a, b *Tensor) *Tensor { return c.op("penstock::matmul").t(a).t(b).one() }

// Sum and Mean are over all elements.
func (c *Ctx) Sum(a *Tensor) *Tensor  { return c.op("aten::sum").t(a).one() }
func (c *Ctx) Mean(a *Tensor) *Tensor { return c.op("aten::mean").t(a).one() }

func (c *Ctx) Argmax(a *Tensor, dim int64) *Tensor { return c.op("aten::argmax").t(a).i(dim).one() }

// Linear is input [*, in] times weight [out, in] transposed, plus bias [out] (may be nil). Its
// backward adds to the gradient of weight in place.
func (c *Ctx) Linear(input, weight, bias *Tensor) *Tensor {
	return c.op("penstock::linear").t(input).t(weight).t(bias).one()
}

// PlainLinear is Linear for a weight with several uses. Autograd then sums the weight's gradients,
// in one order. Input is multiplied as a matrix of rows.
func (c *Ctx) PlainLinear(input, weight, bias *Tensor) *Tensor {
	return c.op("penstock::plain_linear").t(input).t(weight).t(bias).one()
}

func (c *Ctx) ReLU_(a *Tensor) *Tensor { return c.op("aten::relu_").t(a).inPlace(a) }

// GELU has a correct backward for every layout of the gradient; approximate is "none" or "tanh".
func (c *Ctx) GELU(a *Tensor, approximate string) *Tensor {
	return c.op("penstock::gelu").t(a).s(approximate).one()
}

// Empty is uninitialised.
func (c *Ctx) Empty(dtype DType, shape ...int64) *Tensor {
	return c.factory("aten::empty.memory_format", dtype, shape)
}
func (c *Ctx) Zeros(dtype DType, shape ...int64) *Tensor {
	return c.factory("aten::zeros", dtype, shape)
}
func (c *Ctx) Ones(dtype DType, shape ...int64) *Tensor { return c.factory("aten::ones", dtype, shape) }

// Randn returns float32 numbers from the standard normal distribution. They depend on Options.Seed
// and on the number of draws of the context before.
func (c *Ctx) Randn(shape ...int64) *Tensor { return c.Normal_(c.Empty(Float32, shape...), 0, 1) }

func (c *Ctx) factory(op string, dtype DType, shape []int64) *Tensor {
	return c.op(op).ints(shape).dtype(dtype).none().device(c.device).one()
}

// Expand is a view in which dimensions of one element repeat it.
func (c *Ctx) Expand(a *Tensor, shape ...int64) *Tensor {
	return c.op("aten::expand").t(a).ints(shape).one()
}

func (c *Ctx) Zero_(a *Tensor) *Tensor { return c.op("aten::zero_").t(a).inPlace(a) }
func (c *Ctx) Fill_(a *Tensor, v float64) *Tensor {
	return c.op("aten::fill_.Scalar").t(a).f(v).inPlace(a)
}

// Copy_ overwrites a with b, converting and broadcasting.
func (c *Ctx) Copy_(a, b *Tensor) *Tensor { return c.op("aten::copy_").t(a).t(b).inPlace(a) }

// Clone copies a to the context's account, with the same strides if they are dense.
func (c *Ctx) Clone(a *Tensor) *Tensor { return c.op("aten::clone").t(a).one() }

// Detach is the same memory, outside the graph.
func (c *Ctx) Detach(a *Tensor) *Tensor { return c.op("aten::detach").t(a).one() }

// To copies a, even if it has the type already.
func (c *Ctx) To(a *Tensor, dtype DType) *Tensor {
	return c.op("aten::_to_copy").t(a).dtype(dtype).one()
}

// CopyHere copies a to the context's device and account, outside the graph.
func (c *Ctx) CopyHere(a *Tensor) (out *Tensor) {
	c.NoGrad(func() { out = c.op("penstock::transfer").t(a).device(c.device).one() })
	return out
}

// Reshape takes -1 for one size. Without sizes it makes a scalar of one element.
func (c *Ctx) Reshape(a *Tensor, shape ...int64) *Tensor {
	return c.op("aten::reshape").t(a).ints(shape).one()
}
func (c *Ctx) Transpose(a *Tensor, i, j int64) *Tensor {
	return c.op("aten::transpose.int").t(a).i(i).i(j).one()
}

// Narrow is a view of length entries of a dimension, from index start on.
func (c *Ctx) Narrow(a *Tensor, dim, start, length int64) *Tensor {
	return c.op("penstock::narrow").t(a).i(dim).i(start).i(length).one()
}
func (c *Ctx) Cat(list []*Tensor, dim int64) *Tensor { return c.op("aten::cat").ts(list).i(dim).one() }

func (c *Ctx) Uniform_(a *Tensor, from, to float64) *Tensor {
	return c.op("aten::uniform_").t(a).f(from).f(to).seed().inPlace(a)
}
func (c *Ctx) Normal_(a *Tensor, mean, std float64) *Tensor {
	return c.op("aten::normal_").t(a).f(mean).f(std).seed().inPlace(a)
}
