package torch

import (
	"slices"

	"penstock.example/internal/shim"
)

// Empty is uninitialised.
func (c *Ctx) Empty(dtype DType, shape ...int64) *Tensor {
	return c.factory("aten::empty.memory_format", dtype, shape)
}
func (c *Ctx) Zeros(dtype DType, shape ...int64) *Tensor {
	return c.factory("aten::zeros", dtype, shape)
}
func (c *Ctx) Ones(dtype DType, shape ...int64) *Tensor { return c.factory("aten::ones", dtype, shape) }

// Eye is the identity matrix of n rows.
func (c *Ctx) Eye(dtype DType, n int64) *Tensor {
	return c.op("aten::eye").i(n).dtype(dtype).none().device(c.device).one()
}

// Randn returns float32 numbers from the normal distribution of mean 0 and deviation 1. They follow
// from Options.Seed and from how many tensors the context has drawn before.
func (c *Ctx) Randn(shape ...int64) *Tensor { return c.Normal_(c.Empty(Float32, shape...), 0, 1) }

func (c *Ctx) factory(op string, dtype DType, shape []int64) *Tensor {
	return c.op(op).is(list(shape)).dtype(dtype).none().device(c.device).one()
}

// list is a list of ints for the encoder, to which nil is None.
func list(v []int64) []int64 {
	if v == nil {
		return []int64{}
	}
	return v
}

// EmptyStrided is uninitialised, with strides in elements.
func (c *Ctx) EmptyStrided(dtype DType, shape, strides []int64) *Tensor {
	return c.strided(dtype, shape, strides, c.device).none().one()
}

// EmptyPinned is EmptyStrided in memory of the host that no account counts, from which the context's
// device copies fastest.
func (c *Ctx) EmptyPinned(dtype DType, shape, strides []int64) (t *Tensor) {
	c.Unlimited(func() { t = c.strided(dtype, shape, strides, CPU(0)).b(c.device.Kind != KindCPU).one() })
	return t
}

func (c *Ctx) strided(dtype DType, shape, strides []int64, d Device) *encoder {
	return c.op("aten::empty_strided").is(list(shape)).is(list(strides)).dtype(dtype).none().device(d)
}

// Strides returns, for each dimension, the number of elements in memory from one index to the next.
func (c *Ctx) Strides(a *Tensor) []int64 {
	out := make([]int64, a.Dims())
	for d := range out {
		out[d] = int64(c.op("aten::stride.int").t(a).i(int64(d)).run()[1])
	}
	return out
}

// Expand is a view in which dimensions of one element repeat it.
func (c *Ctx) Expand(a *Tensor, shape ...int64) *Tensor {
	return c.op("aten::expand").t(a).is(shape).one()
}

func (c *Ctx) EmptyLike(a *Tensor) *Tensor { return c.op("aten::empty_like").t(a).one() }
func (c *Ctx) ZerosLike(a *Tensor) *Tensor { return c.op("aten::zeros_like").t(a).one() }
func (c *Ctx) OnesLike(a *Tensor) *Tensor  { return c.op("aten::ones_like").t(a).one() }
func (c *Ctx) Zero_(a *Tensor) *Tensor     { return c.op("aten::zero_").t(a).same(a) }
func (c *Ctx) Fill_(a *Tensor, v float64) *Tensor {
	return c.op("aten::fill_.Scalar").t(a).f(v).same(a)
}

// Copy_ overwrites a with b, converting and broadcasting.
func (c *Ctx) Copy_(a, b *Tensor) *Tensor { return c.op("aten::copy_").t(a).t(b).same(a) }

// Clone is new memory on the context's account, with the same strides where they are dense.
func (c *Ctx) Clone(a *Tensor) *Tensor { return c.op("aten::clone").t(a).one() }

// Detach is the same memory, outside the graph.
func (c *Ctx) Detach(a *Tensor) *Tensor { return c.op("aten::detach").t(a).one() }

// To is a copy in another element type: always new memory.
func (c *Ctx) To(a *Tensor, dtype DType) *Tensor {
	return c.op("aten::_to_copy").t(a).dtype(dtype).one()
}

// View is the memory of a vector, taken for elements of another type.
func (c *Ctx) View(a *Tensor, dtype DType) *Tensor {
	return c.op("aten::view.dtype").t(a).dtype(dtype).one()
}

// CopyHere copies a, outside the graph, to the context's device and account. It is the transfer
// between devices.
func (c *Ctx) CopyHere(a *Tensor) (out *Tensor) {
	c.NoGrad(func() { out = c.op("penstock::transfer").t(a).device(c.device).one() })
	return out
}

// copyTo begins a copy to a device for which the host does not wait.
func (c *Ctx) copyTo(d Device, a *Tensor) *Tensor {
	return c.op("aten::_to_copy").t(a).skip().skip().device(d).skip().b(true).one()
}

// Mailbox returns an empty float32 tensor that requires a gradient, in which a Gate leaves its
// gradient.
func (c *Ctx) Mailbox() *Tensor { return c.Empty(Float32, 0).SetRequiresGrad(true) }

// Gate returns value's memory as the beginning of a graph. Backward leaves the gradient that
// arrives in mailbox (GradOf), with its shape, type and layout, and goes no further.
//
// The graph holds mailbox, and of value only what its operators need. mailbox may be value itself,
// if that is a leaf. Every backward through the gate replaces the gradient in the mailbox: a second
// one through a graph that was kept does not add. With grad off, or a mailbox that needs no
// gradient, the result is value, detached.
func (c *Ctx) Gate(mailbox, value *Tensor) *Tensor {
	return c.op("penstock::gate").t(mailbox).t(value).one()
}

// Mailed is Gate with a mailbox of its own, in which a gradient that is not dense is left as a copy.
func (c *Ctx) Mailed(value *Tensor) (mailbox, behind *Tensor) {
	w := c.op("penstock::mailed").t(value).run()
	return c.own(shim.Handle(w[1])), c.own(shim.Handle(w[3]))
}

// Branch returns t's memory under a node of its own. The gradients of the branch's uses are summed
// there first, and their sum joins the gradients of t's other uses. A change in place of one is a
// change of the other. A gradient that is not dense joins as a copy. With grad off it is a second
// handle on t.
func (c *Ctx) Branch(t *Tensor) *Tensor { return c.op("penstock::branch").t(t).one() }

// Border is t as a layer gives it to another one: t itself if it is dense ([Dense]), and else a copy.
// A gradient that comes back to it is made dense in the same way before it goes on. Where t is one of
// the layer's inputs, what made that is left as it is: if it does not expect dense gradients, t becomes
// a Branch.
func (c *Ctx) Border(t *Tensor, inputs ...*Tensor) *Tensor {
	given := slices.ContainsFunc(inputs, func(x *Tensor) bool { return x != nil && x.h == t.h })
	switch c.border(t, given) {
	case shim.Gaps:
		t = c.Clone(t)
		c.border(t, false)
	case shim.Foreign:
		t = c.Branch(t)
	}
	return t
}

func (c *Ctx) border(t *Tensor, given bool) int {
	is, err := shim.Border(t.given("border"), given)
	c.check("border", err, t)
	return is
}

// InMemoryOrder returns a view of one dimension of a dense tensor ([Dense]), in the order of addresses.
func (c *Ctx) InMemoryOrder(t *Tensor) *Tensor {
	h, err := shim.Memory(t.Handle())
	c.check("in_memory_order", err, t)
	return c.own(h)
}

// Reshape takes -1 for one size. No sizes make a number of a tensor of one element.
func (c *Ctx) Reshape(a *Tensor, shape ...int64) *Tensor {
	return c.op("aten::reshape").t(a).is(list(shape)).one()
}

// Flatten makes one dimension of those from start to end, inclusive.
func (c *Ctx) Flatten(a *Tensor, start, end int64) *Tensor {
	return c.op("aten::flatten.using_ints").t(a).i(start).i(end).one()
}
func (c *Ctx) Transpose(a *Tensor, i, j int64) *Tensor {
	return c.op("aten::transpose.int").t(a).i(i).i(j).one()
}

// Narrow is a view of length entries of a dimension from start.
func (c *Ctx) Narrow(a *Tensor, dim, start, length int64) *Tensor {
	return c.op("penstock::narrow").t(a).i(dim).i(start).i(length).one()
}

// Split gives views of at most size entries along a dimension.
func (c *Ctx) Split(a *Tensor, size, dim int64) []*Tensor {
	return c.op("aten::split.Tensor").t(a).i(size).i(dim).list()
}
func (c *Ctx) Cat(list []*Tensor, dim int64) *Tensor { return c.op("aten::cat").ts(list).i(dim).one() }

// Pad puts value around a, in pairs of before and after from the last dimension on.
func (c *Ctx) Pad(a *Tensor, pad []int64, value float64) *Tensor {
	return c.op("aten::constant_pad_nd").t(a).is(pad).f(value).one()
}

// Triu keeps the elements on and above a diagonal.
func (c *Ctx) Triu(a *Tensor, diagonal int64) *Tensor {
	return c.op("aten::triu").t(a).i(diagonal).one()
}

// Contiguous is row-major, in the same memory if it already is.
func (c *Ctx) Contiguous(a *Tensor) *Tensor { return c.op("aten::contiguous").t(a).one() }

// Bernoulli_ is one with probability p, else zero. It, Uniform_ and Normal_ have a generator of the next
// draw's seed.
func (c *Ctx) Bernoulli_(a *Tensor, p float64) *Tensor {
	return c.op("aten::bernoulli_.float").t(a).f(p).seed().same(a)
}
func (c *Ctx) Uniform_(a *Tensor, from, to float64) *Tensor {
	return c.op("aten::uniform_").t(a).f(from).f(to).seed().same(a)
}
func (c *Ctx) Normal_(a *Tensor, mean, std float64) *Tensor {
	return c.op("aten::normal_").t(a).f(mean).f(std).seed().same(a)
}
